"""One execution context of an engine, with the memory that it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC
from services.runtime.faults import RunError
from services.runtime.staging import Side
from services.tensorrt.cuda import Gpu, Graph

ELSEWHERE = "Use the provider tensorrt, which runs such parts with CUDA."

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


@dataclass(frozen=True, slots=True)
class Tensors:
    """The names of an engine's inputs and outputs, and the types of all."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    dtypes: Mapping[str, np.dtype[Any]]

    @classmethod
    def of(cls, trt: Any, engine: Any) -> Tensors:
        """Those of `engine`; UNSUPPORTED_MODEL for what cannot be bound."""
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        for name in names:
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise MlctlError(
                    ErrorCode.UNSUPPORTED_MODEL,
                    f"tensor {name!r} decides the shape of others",
                    ELSEWHERE,
                )
        dtypes = {name: _dtype(name, engine.get_tensor_dtype(name).name) for name in names}
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        return cls(inputs, [name for name in names if name not in inputs], dtypes)


class Runner:
    """Runs the engine on the stream of `gpu`, with memory that grows to what is asked.

    PROVIDER_UNAVAILABLE if there is no memory for a context.
    """

    def __init__(self, engine: Any, tensors: Tensors, gpu: Gpu) -> None:
        self._context = engine.create_execution_context()
        if self._context is None:
            raise MlctlError(
                ErrorCode.PROVIDER_UNAVAILABLE,
                "TensorRT made no execution context: the GPU's memory may be full",
                "Free some of it, or serve with the provider cuda.",
            )
        self._engine, self._tensors, self._gpu = engine, tensors, gpu
        self._sides: dict[str, Side] = {}
        self._sent: dict[str, np.ndarray] = {}
        self._received: dict[str, np.ndarray] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; INVALID_INPUT for a shape outside of the engine's profile."""
        self._sent = {name: self._feed(name, inputs[name]) for name in self._tensors.inputs}
        if unknown := self._context.infer_shapes():
            raise MlctlError(ErrorCode.INVALID_INPUT, f"tensor {unknown[0]!r} has no shape")
        self._received = {name: self._prepare_output(name) for name in self._tensors.outputs}
        self._queue()
        return self._answers()

    def capture(self) -> Graph:
        """All that the last run did on the device, to be done again by `replay`."""
        return self._gpu.capture(self._queue)

    def fits(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether `inputs` have the forms that the last run had."""
        return all(
            name in inputs and (inputs[name].dtype, inputs[name].shape) == (sent.dtype, sent.shape)
            for name, sent in self._sent.items()
        )

    def replay(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs for inputs that fit."""
        for name, sent in self._sent.items():
            sent[...] = inputs[name]
        graph.launch()
        return self._answers()

    def _queue(self) -> None:
        for name, array in self._sent.items():
            self._gpu.upload(array, self._sides[name].device)
        if not self._context.execute_async_v3(self._gpu.stream):
            raise RunError("TensorRT did not run the engine")
        for name, array in self._received.items():
            self._gpu.download(self._sides[name].device, array)

    def _answers(self) -> dict[str, np.ndarray]:
        self._gpu.synchronize()
        # The next run writes where these lie.
        return {name: array.copy() for name, array in self._received.items()}

    def _feed(self, name: str, value: np.ndarray) -> np.ndarray:
        """A copy of `value` in pinned memory."""
        dtype = self._tensors.dtypes[name]
        if value.dtype != dtype:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"tensor {name!r}: dtype is {value.dtype}, the engine takes {dtype.name}",
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
                ELSEWHERE,
            )
        return self._reserve(name, shape)

    def _reserve(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Pinned memory for a tensor of that shape, and memory of the device, which is bound."""
        dtype = self._tensors.dtypes[name]
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
