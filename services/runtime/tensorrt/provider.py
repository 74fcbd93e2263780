"""TensorRT through ONNX Runtime: what it cannot take of a graph runs on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from bundle.packages import install_hint, installed_version
from services.runtime.graph import read_graph
from services.runtime.tensorrt.cache import fetch_engine, timing_directory
from services.runtime.tensorrt.devices import find_gpu
from services.runtime.tensorrt.installed import provider_problem, tensorrt_version
from services.runtime.tensorrt.key import Device, engine_key, model_sha256
from services.runtime.tensorrt.options import EngineOptions, provider_options
from services.runtime.tensorrt.process import run_worker
from services.runtime.tensorrt.profile import make_profile

PROVIDER = "tensorrt"

Providers = Sequence[tuple[str, Mapping[str, str]]]


def prepare_providers(model: Path, batching: Batching | None, options: EngineOptions) -> Providers:
    """Return the providers to open `model` with, whose engines are in the cache.

    The runtime names an engine by its graph and not by its weights, so every key gets a
    directory of its own. A worker opens the model there first: that builds the engines
    under the timeout, and this process only reads them. PROVIDER_UNAVAILABLE without a GPU and
    the TensorRT that the runtime is linked to; a failed build raises the errors of `fetch_engine`.
    """
    if problem := provider_problem():
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE,
            f"provider {PROVIDER!r} was asked for, but {problem}",
            install_hint("trt"),
        )
    device = Device(
        find_gpu(), tensorrt_version() or "", installed_version("onnxruntime-gpu") or ""
    )
    graph = read_graph(model)
    profile = make_profile(graph.inputs, batching, options.lengths)
    key = engine_key(model_sha256(graph.files), device, profile, options.workspace_bytes)
    timing = timing_directory(device)

    def providers(engines: Path) -> Providers:
        chosen = provider_options(options, profile, engines, timing)
        return [("TensorrtExecutionProvider", chosen), ("CUDAExecutionProvider", {})]

    def warm(directory: Path) -> None:
        request = {"model": str(model.absolute()), "providers": providers(directory)}
        run_worker("warm", request, options.build_timeout_s)

    return providers(fetch_engine(model, key, warm).root)
