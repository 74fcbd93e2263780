"""A session on TensorRT itself: the whole graph as one engine, or an error."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from bundle.tensors import DYNAMIC
from services.runtime.faults import RunError
from services.runtime.graph import read_graph
from services.runtime.staging import Side
from services.tensorrt.build import build_engine
from services.tensorrt.builder import make_logger
from services.tensorrt.cache import ENGINE_NAME, TIMING_NAME, fetch_engine, timing_directory
from services.tensorrt.cuda import Driver, Gpu
from services.tensorrt.key import engine_key, model_sha256
from services.tensorrt.options import EngineOptions
from services.tensorrt.probe import require_device
from services.tensorrt.process import OnProgress
from services.tensorrt.profile import make_profile

PROVIDER = "tensorrt-raw"

_ELSEWHERE = "Use the provider tensorrt, which runs such parts with CUDA."

# BF16 has no numpy type of its own; its bits travel as uint16, as in `bundle.tensors`.
_DTYPES: Mapping[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "uint16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


def prepare_engine(
    model: Path,
    batching: Batching | None,
    options: EngineOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """The engine file for `model` on this machine, from the cache or built now.

    PROVIDER_UNAVAILABLE without TensorRT and a GPU; the build's failures are `fetch_engine`'s.
    """
    device = require_device(PROVIDER, "trt")
    graph = read_graph(model)
    profile = make_profile(graph.inputs, batching, options.lengths)
    key = engine_key(model_sha256(graph.files), device, profile, options.flags, "tensorrt")
    timing = timing_directory(device) / TIMING_NAME

    def build(directory: Path) -> None:
        engine = directory / ENGINE_NAME
        build_engine(model, engine, profile, options, timing_cache=timing, on_progress=on_progress)

    return fetch_engine(model, key, build).root / ENGINE_NAME


def open_engine(model: Path, batching: Batching | None, options: EngineOptions) -> EngineSession:
    """A session on the engine of `model`, which is built first if it has to be."""
    path = prepare_engine(model, batching, options)
    trt: Any = importlib.import_module("tensorrt")
    gpu = Gpu(Driver())
    log = make_logger(trt)
    runtime = trt.Runtime(log)
    # Such an engine brings the code of its own lean runtime along.
    runtime.engine_host_code_allowed = options.flags.version_compatible
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE, f"TensorRT cannot load its engine: {log.last}"
        )
    return EngineSession(trt, engine, gpu, owners=(runtime, log))


class EngineSession:
    """Runs an engine of TensorRT on one stream, with memory that grows to what is asked.

    `owners` are what must outlive the engine.
    """

    def __init__(self, trt: Any, engine: Any, gpu: Gpu, owners: tuple[Any, ...] = ()) -> None:
        self.provider = PROVIDER
        self._context = engine.create_execution_context()
        self._engine, self._gpu, self._owners = engine, gpu, owners
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        for name in names:
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise MlctlError(
                    ErrorCode.UNSUPPORTED_MODEL,
                    f"tensor {name!r} decides the shape of others",
                    _ELSEWHERE,
                )
        self._dtypes = {name: _dtype(name, engine.get_tensor_dtype(name).name) for name in names}
        self._inputs = [
            name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        ]
        self._outputs = [name for name in names if name not in self._inputs]
        self._sides: dict[str, Side] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; INVALID_INPUT for a shape outside of the engine's profile."""
        self._gpu.attach()
        sent = {name: self._feed(name, inputs[name]) for name in self._inputs}
        if unknown := self._context.infer_shapes():
            raise MlctlError(ErrorCode.INVALID_INPUT, f"tensor {unknown[0]!r} has no shape")
        received = {name: self._prepare_output(name) for name in self._outputs}
        for name, array in sent.items():
            self._gpu.upload(array, self._sides[name].device)
        if not self._context.execute_async_v3(self._gpu.stream):
            raise RunError("TensorRT did not run the engine")
        for name, array in received.items():
            self._gpu.download(self._sides[name].device, array)
        self._gpu.synchronize()
        # The next run writes where these lie.
        return {name: array.copy() for name, array in received.items()}

    def _feed(self, name: str, value: np.ndarray) -> np.ndarray:
        """A copy of `value` in pinned memory."""
        if value.dtype != self._dtypes[name]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"tensor {name!r}: dtype is {value.dtype}, "
                f"the engine takes {self._dtypes[name].name}",
            )
        if not self._context.set_input_shape(name, value.shape):
            least, _, greatest = map(list, self._engine.get_tensor_profile_shape(name, 0))
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"tensor {name!r}: shape is {list(value.shape)}, "
                f"the engine takes {least} to {greatest}",
            )
        array = self._reserve(name, value.shape)
        array[...] = value
        return array

    def _prepare_output(self, name: str) -> np.ndarray:
        """Pinned memory for the output."""
        shape = tuple(self._context.get_tensor_shape(name))
        if DYNAMIC in shape:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"the shape of output {name!r} depends on the values of the inputs",
                _ELSEWHERE,
            )
        return self._reserve(name, shape)

    def _reserve(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Pinned memory for a tensor of that shape, and memory of the device, which is bound."""
        dtype = self._dtypes[name]
        size = math.prod(shape) * dtype.itemsize
        side = self._sides.setdefault(name, Side(self._gpu))
        side.reserve(max(size, 1))
        self._context.set_tensor_address(name, side.device.address)
        return side.host[:size].view(dtype).reshape(shape)


def _dtype(name: str, tensorrt_name: str) -> np.dtype[Any]:
    if tensorrt_name not in _DTYPES:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"tensor {name!r} is of TensorRT's type {tensorrt_name}"
        )
    return np.dtype(_DTYPES[tensorrt_name])
