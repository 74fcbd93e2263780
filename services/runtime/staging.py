"""Copies ahead of a GPU and behind it, so that it never waits for them.

While the GPU runs one piece of work, one thread copies the next to it, and another the answers
of the last one from it: each on a stream of its own, between device memory and pinned memory,
which alone can be copied while the GPU computes. ONNX Runtime is given addresses of the device
(IO binding), and has run to the end when it returns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.tensorrt.cuda import Buffer, Gpu

Arrays = Mapping[str, np.ndarray]
# What the device's own allocations are aligned to, and its fastest loads want.
_ALIGNMENT = 256


class Bindable(Protocol):
    """A session whose inputs and outputs may be told as addresses."""

    def binding(self) -> Any:
        """A new binding of ONNX Runtime."""
        ...

    def run_bound(self, binding: Any) -> None:
        """Run what is bound to its end; RunError if the runtime fails on it."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's form, and how many bytes lie between its calls."""

    name: str
    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    stride: int

    @classmethod
    def of(cls, spec: TensorSpec, call_rows: int) -> Tensor:
        """The form of `spec` in calls of `call_rows` rows."""
        dtype, inner = np.dtype(spec.dtype.numpy_name), spec.shape[1:]
        size = call_rows * math.prod(inner) * dtype.itemsize
        return cls(spec.name, dtype, inner, _aligned(max(size, 1)))

    def over(self, memory: np.ndarray, start: int, rows: int) -> np.ndarray:
        """The `rows` rows of it that lie in `memory` from byte `start`."""
        size = rows * math.prod(self.inner) * self.dtype.itemsize
        return memory[start : start + size].view(self.dtype).reshape(rows, *self.inner)


class Side:
    """Inputs or outputs: pinned memory and memory of the device, which grow to what is asked."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.host = np.empty(0, np.uint8)
        self.device = Buffer(0, 0)

    def reserve(self, size: int) -> None:
        if self.device.size < size:
            self.host = self._gpu.pin(size)
            self.device = self._gpu.allocate(size)

    def up(self, size: int) -> None:
        self._gpu.upload(self.host[:size], self.device)
        self._gpu.synchronize()

    def down(self, size: int) -> None:
        self._gpu.download(self.device, self.host[:size])
        self._gpu.synchronize()


@dataclass(slots=True)
class Loaded:
    """`rows` rows on the device, and room for their answers."""

    rows: int
    inputs: Side = field(repr=False)
    outputs: Side = field(repr=False)


class Staging:
    """Runs one session in calls of `call_rows` rows at most, on memory of the device.

    `load`, `run` and `fetch` may each have a thread of its own; one thread each.
    """

    def __init__(
        self,
        session: Bindable,
        signature: Signature,
        call_rows: int,
        up: Gpu,
        down: Gpu,
        device: str = "cuda",
    ) -> None:
        self._session = session
        self._binding = session.binding()
        self._call_rows = call_rows
        self._inputs = [Tensor.of(spec, call_rows) for spec in signature.inputs]
        self._outputs = [Tensor.of(spec, call_rows) for spec in signature.outputs]
        self._up, self._down, self._device = up, down, device
        self._idle: deque[Loaded] = deque()

    def load(self, inputs: Arrays) -> Loaded:
        """Copy checked `inputs` to the device, and wait for that."""
        rows = next(iter(inputs.values())).shape[0]
        self._up.attach()
        loaded = self._free()
        loaded.rows = rows
        loaded.inputs.reserve(self._size(self._inputs, rows))
        loaded.outputs.reserve(self._size(self._outputs, rows))
        for tensor, base in self._laid(self._inputs, rows):
            for first, count in self._calls(rows):
                place = tensor.over(loaded.inputs.host, base + self._step(tensor, first), count)
                place[...] = inputs[tensor.name][first : first + count]
        loaded.inputs.up(self._size(self._inputs, rows))
        return loaded

    def run(self, loaded: Loaded) -> None:
        """Have the answers of what was loaded on the device; RunError if the runtime fails."""
        inputs = list(self._laid(self._inputs, loaded.rows))
        outputs = list(self._laid(self._outputs, loaded.rows))
        for first, count in self._calls(loaded.rows):
            for bind, side, tensors in (
                (self._binding.bind_input, loaded.inputs, inputs),
                (self._binding.bind_output, loaded.outputs, outputs),
            ):
                for tensor, base in tensors:
                    address = side.device.address + base + self._step(tensor, first)
                    shape = [count, *tensor.inner]
                    bind(tensor.name, self._device, 0, tensor.dtype.type, shape, address)
            self._session.run_bound(self._binding)

    def fetch(self, loaded: Loaded) -> dict[str, np.ndarray]:
        """The answers of what was run; its memory is then used for other work."""
        rows = loaded.rows
        self._down.attach()
        loaded.outputs.down(self._size(self._outputs, rows))
        answers = {}
        for tensor, base in self._laid(self._outputs, rows):
            answer = np.empty((rows, *tensor.inner), tensor.dtype)
            for first, count in self._calls(rows):
                start = base + self._step(tensor, first)
                answer[first : first + count] = tensor.over(loaded.outputs.host, start, count)
            answers[tensor.name] = answer
        self.drop(loaded)
        return answers

    def drop(self, loaded: Loaded) -> None:
        """Use the memory for other work: the answers are not wanted."""
        self._idle.append(loaded)

    def _free(self) -> Loaded:
        """Memory that nobody uses. New if there is none: who loads ahead bounds how much."""
        try:
            return self._idle.popleft()
        except IndexError:
            return Loaded(0, Side(self._up), Side(self._down))

    def _calls(self, rows: int) -> Iterator[tuple[int, int]]:
        """The first row and the number of rows of each call."""
        for first in range(0, rows, self._call_rows):
            yield first, min(self._call_rows, rows - first)

    def _step(self, tensor: Tensor, first: int) -> int:
        return first // self._call_rows * tensor.stride

    def _laid(self, tensors: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, int]]:
        """Each tensor and where it begins, one after the other."""
        base, calls = 0, -(-rows // self._call_rows)
        for tensor in tensors:
            yield tensor, base
            base += calls * tensor.stride

    def _size(self, tensors: Sequence[Tensor], rows: int) -> int:
        return -(-rows // self._call_rows) * sum(tensor.stride for tensor in tensors)


def can_stage(signature: Signature) -> bool:
    """Whether a row of each tensor is as many bytes as any other, so that its place is known."""
    return all(
        spec.dtype is not Datatype.BYTES and DYNAMIC not in spec.shape[1:]
        for spec in (*signature.inputs, *signature.outputs)
    )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
