"""TensorRT through ONNX Runtime: the provider's options, and the cache of its engines.

The parts of a graph that TensorRT does not support run on CUDA. An engine is built once per key,
on the machine that runs it. The key covers everything that the engine depends on, so an engine of
another model, GPU, driver, version or profile is never found. A damaged entry is built again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mlctl.bundle.manifest import Batching
from mlctl.core.canonical import canonical_json
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.entries import Entry, Key, fetch_or_build
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file
from mlctl.core.home import state_dir
from mlctl.core.packages import install_hint, installed_version
from mlctl.services.model.onnx_graph import read_graph
from mlctl.services.model.tensorrt.machine import (
    Gpu,
    find_gpu,
    provider_problem,
    tensorrt_version,
)
from mlctl.services.model.tensorrt.process import Cause, WorkerError, run_worker
from mlctl.services.model.tensorrt.profile import (
    DEFAULT_LENGTHS,
    PROVIDER,
    Profile,
    SizeRange,
    make_profile,
    render_shapes,
)

Providers = Sequence[tuple[str, Mapping[str, str]]]
_ROOT = ("cache", "tensorrt")
# Engines of large models take minutes; after an hour TensorRT counts as hung.
BUILD_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, and the versions of the libraries that build its engines."""

    gpu: Gpu
    tensorrt: str
    onnxruntime: str


def prepare_providers(
    model: Path, batching: Batching | None, lengths: SizeRange = DEFAULT_LENGTHS
) -> Providers:
    """Return the providers to open the ONNX file `model` with; their engines are in the cache.

    `lengths` is the range of every dynamic dimension but the batch. The runtime names an engine by
    its graph and not by its weights, so every key has its own directory. A worker process opens
    the model there first, which builds the engines under a time limit; this process only reads
    them. PROVIDER_UNAVAILABLE without a GPU or without the TensorRT that the runtime is linked to;
    a failed build raises the errors of `fetch_engine`.
    """
    if problem := provider_problem():
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE,
            f"the provider {PROVIDER!r} is not available: {problem}",
            install_hint("trt"),
        )
    device = Device(
        find_gpu(), tensorrt_version() or "", installed_version("onnxruntime-gpu") or ""
    )
    graph = read_graph(model)
    profile = make_profile(graph.inputs, batching, lengths)
    key = engine_key(model_sha256(graph.files), device, profile)
    timing = timing_directory(device)

    def providers(engines: Path) -> Providers:
        options = provider_options(profile, engines, timing)
        return [("TensorrtExecutionProvider", options), ("CUDAExecutionProvider", {})]

    def warm(directory: Path) -> None:
        request = {"model": str(model.absolute()), "providers": providers(directory)}
        run_worker("warm", request, BUILD_TIMEOUT_SECONDS)

    return providers(fetch_engine(model, key, warm).root)


def provider_options(profile: Profile, engines: Path, timing: Path) -> Mapping[str, str]:
    """Return options of ONNX Runtime's TensorRT provider; its caches are `engines` and `timing`.

    No precision option is among them: without one the provider builds a strongly typed
    network, whose precision is the graph's.
    """
    options = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(timing),
    }
    for bound, shapes in render_shapes(profile).items():
        options[f"trt_profile_{bound}_shapes"] = shapes
    return options


def fetch_engine(
    model: Path, key: Key, build: Callable[[Path], None], clock: Clock | None = None
) -> Entry:
    """Return the cache entry for `key`; `build` fills its directory if there is none.

    UNSUPPORTED_MODEL if TensorRT rejects the model, PROVIDER_UNAVAILABLE if it crashed
    or ran out of time.
    """
    try:
        return fetch_or_build(state_dir(*_ROOT, "engines"), key, build, clock or SystemClock())
    except WorkerError as error:
        raise _build_error(model, error) from error


def engine_key(model_sha256: str, device: Device, profile: Profile) -> Key:
    """Return the key of the engines of a model for `device`."""
    return {
        "kind": "engine",
        "model": model_sha256,
        **asdict(device.gpu),
        "tensorrt": device.tensorrt,
        "onnxruntime": device.onnxruntime,
        "profile": canonical_json(render_shapes(profile)).decode(),
    }


def model_sha256(files: tuple[Path, ...]) -> str:
    """Return one digest of a graph and its data files: names and contents, graph first."""
    listed = [[path.name, sha256_file(path)] for path in files]
    return hashlib.sha256(canonical_json(listed)).hexdigest()


def timing_directory(device: Device) -> Path:
    """Return the folder of kernel timings, which shorten later builds: one per GPU and version."""
    timed = {**asdict(device.gpu), "tensorrt": device.tensorrt}
    name = hashlib.sha256(canonical_json(timed)).hexdigest()[:16]
    return state_dir(*_ROOT, "timing", name)


def _build_error(model: Path, error: WorkerError) -> MlctlError:
    if error.cause is Cause.REJECTED:
        return MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"TensorRT cannot build an engine of {model.name}: {error.reason}",
            "Serve it with the provider cuda, or choose another recipe in `mlctl optimize`.",
        )
    return MlctlError(
        ErrorCode.PROVIDER_UNAVAILABLE,
        f"the TensorRT build of {model.name} failed: {error.reason}",
        "Serve it with the provider cuda.",
    )
