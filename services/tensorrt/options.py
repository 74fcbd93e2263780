"""What a user may set about an engine, and how ONNX Runtime's provider is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from services.tensorrt.profile import DEFAULT_LENGTHS, Profile, Range, render_shapes


class Flavour(StrEnum):
    """Which TensorRT; the value is its Python module. The APIs are one family."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt_rtx"


class HardwareCompatibility(StrEnum):
    """On which GPUs besides the one it was built on an engine may run, at a cost in speed."""

    NONE = "none"
    AMPERE_PLUS = "ampere_plus"
    SAME_COMPUTE_CAPABILITY = "same_compute_capability"


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """What shapes an engine, and so is part of its key.

    The two compatibility flags make an engine that may be carried elsewhere by hand; the
    cache never relies on them. `workspace_bytes` None leaves TensorRT all of the GPU.
    """

    version_compatible: bool = False
    hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    workspace_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to make an engine: `flags`, the range of dynamic lengths, and how long it may take."""

    flags: EngineFlags = field(default_factory=EngineFlags)
    lengths: Range = DEFAULT_LENGTHS
    build_timeout_s: float = 1800.0


def provider_options(
    flags: EngineFlags, profile: Profile, engines: Path, timing: Path
) -> Mapping[str, str]:
    """Options of onnxruntime's TensorRT provider: caches in `engines` and `timing`.

    No precision option is among them: without one the provider builds a strongly typed
    network, whose precision is the graph's. INVALID_INPUT for a flag it does not have.
    """
    if flags.version_compatible or (
        flags.hardware_compatibility is HardwareCompatibility.SAME_COMPUTE_CAPABILITY
    ):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "ONNX Runtime's TensorRT provider has only the ampere_plus compatibility",
            "Drop the flag, or use the provider tensorrt-raw.",
        )
    options = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(timing),
    }
    if flags.hardware_compatibility is HardwareCompatibility.AMPERE_PLUS:
        options["trt_engine_hw_compatible"] = "1"
    if flags.workspace_bytes is not None:
        options["trt_max_workspace_size"] = str(flags.workspace_bytes)
    for bound, shapes in render_shapes(profile).items():
        options[f"trt_profile_{bound}_shapes"] = shapes
    return options
