"""What a user may set about an engine, and the options of ONNX Runtime's provider for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.runtime.tensorrt.profile import DEFAULT_LENGTHS, Profile, SizeRange, render_shapes


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to build an engine: range of dynamic lengths, working memory, time limit.

    `workspace_bytes` None leaves TensorRT all of the GPU.
    """

    lengths: SizeRange = DEFAULT_LENGTHS
    workspace_bytes: int | None = None
    build_timeout_s: float = 1800.0


def provider_options(
    options: EngineOptions, profile: Profile, engines: Path, timing: Path
) -> Mapping[str, str]:
    """Return options of ONNX Runtime's TensorRT provider; its caches are `engines` and `timing`.

    No precision option is among them: without one the provider builds a strongly typed
    network, whose precision is the graph's.
    """
    chosen = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(timing),
    }
    if options.workspace_bytes is not None:
        chosen["trt_max_workspace_size"] = str(options.workspace_bytes)
    for bound, shapes in render_shapes(profile).items():
        chosen[f"trt_profile_{bound}_shapes"] = shapes
    return chosen
