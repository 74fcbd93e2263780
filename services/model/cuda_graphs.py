"""CUDA graphs of ONNX Runtime: each batch size runs as one graph with its own device memory.

A graph launches all kernels of a model at once, which saves a small model most of its time. It
reads and writes the addresses that it was captured with. ONNX Runtime implements all of this: its
values own the device memory, its bindings connect them with the model, and its session captures
the first run of a graph's number and replays it in later runs. Graphs belong to a thread, so one
thread makes all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.manifest import Batching
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.session import OnnxSession, open_session, run_options

_REMEDY = "Serve it without MLCTL_CUDA_GRAPHS."


class CudaGraphSession:
    """Replays batches of `buckets` rows as graphs; runs other batch sizes without a graph."""

    def __init__(
        self,
        inner: OnnxSession,
        signature: Signature,
        buckets: Sequence[int],
        device: str = "cuda",
    ) -> None:
        self.provider = inner.provider
        self._inner = inner
        self._signature = signature
        self._numbers = {rows: number for number, rows in enumerate(buckets, 1)}
        self._device = device
        self._graphs: dict[int, _Graph] = {}
        self._thread = ThreadPoolExecutor(1, "mlctl-cuda")

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all outputs; RunError if the runtime fails.

        UNSUPPORTED_MODEL if the graph of this batch size cannot be captured.
        """
        return self._thread.submit(self._run, inputs).result()

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = self._rows(inputs)
        if rows not in self._numbers:
            return self._inner.run(inputs)
        if rows in self._graphs:
            return self._graphs[rows].run(inputs)
        try:
            graph = _Graph(self._inner, self._signature, rows, self._numbers[rows], self._device)
            outputs = graph.run(inputs)
        except RunError as error:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"the CUDA graph for batches of {rows} rows cannot be captured: {error}",
                _REMEDY,
            ) from error
        self._graphs[rows] = graph
        return outputs

    def _rows(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return the rows of inputs that match the signature; 0 for others (the runtime fails)."""
        if inputs.keys() != {spec.name for spec in self._signature.inputs}:
            return 0
        pairs = [(spec, inputs[spec.name]) for spec in self._signature.inputs]
        rows = {array.shape[0] if _fits(spec, array) else 0 for spec, array in pairs}
        return rows.pop() if len(rows) == 1 else 0


class _Graph:
    """The device memory of a batch of `rows` rows, and the graph that uses it.

    The first run captures the graph. RunError if there is not enough memory.
    """

    def __init__(
        self, session: OnnxSession, signature: Signature, rows: int, number: int, device: str
    ) -> None:
        self._session = session
        self._options = run_options(number)
        self._binding = session.binding()
        self._inputs = {spec.name: _allocate(spec, rows, device) for spec in signature.inputs}
        self._outputs = {spec.name: _allocate(spec, rows, device) for spec in signature.outputs}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Copy the inputs to the device, run, and copy the outputs back."""
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(inputs[name]))
        self._session.run_bound(self._binding, self._options)
        return {name: np.array(value.numpy()) for name, value in self._outputs.items()}


def open_cuda_graphs(
    model: Path, signature: Signature, batching: Batching, threads: int = 1
) -> CudaGraphSession:
    """Load `model` on CUDA with a graph for each batch size of `batching`.

    UNSUPPORTED_MODEL if ONNX Runtime cannot capture it; otherwise the errors of `open_session`.
    """
    for spec in (*signature.inputs, *signature.outputs):
        dynamic = not signature.batched or DYNAMIC in spec.shape[1:]
        if dynamic or spec.dtype is Datatype.BYTES:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"no CUDA graph: tensor {spec.name!r} is {spec.dtype} {list(spec.shape)}, and a "
                "graph needs rows of a fixed size",
                _REMEDY,
            )
    try:
        inner = open_session(model, "cuda", threads, graphs=True)
    except MlctlError as error:
        if error.code is ErrorCode.UNSUPPORTED_MODEL:  # control flow, or operators without a kernel
            raise MlctlError(error.code, error.message, _REMEDY) from error
        raise
    return CudaGraphSession(inner, signature, batching.buckets)


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(spec.dtype.numpy_name)


def _fits(spec: TensorSpec, array: np.ndarray) -> bool:
    """Return whether `array` has rows of `spec`."""
    return bool(array.ndim) and (array.dtype, array.shape[1:]) == (_dtype(spec), spec.shape[1:])


def _allocate(spec: TensorSpec, rows: int, device: str) -> Any:
    """Allocate device memory for `rows` rows of `spec`."""
    import onnxruntime

    runtime: Any = onnxruntime
    shape = [rows, *spec.shape[1:]]
    try:
        return runtime.OrtValue.ortvalue_from_shape_and_type(shape, _dtype(spec).type, device, 0)
    except Exception as error:
        raise RunError(str(error)) from error
