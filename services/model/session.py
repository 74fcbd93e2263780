"""The session: a loaded model file that turns named arrays into named arrays.

A model's external data must be in its folder. The requested execution provider must run the model:
a silent fallback is an error. BYTES tensors are object arrays of `bytes` for callers, whatever the
runtime uses.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlctl.bundle.manifest import Batching
from mlctl.bundle.tensors import DYNAMIC
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import require_onnxruntime
from mlctl.services.model.int8_kernels import OPTION as INT8_PRECISION
from mlctl.services.model.int8_kernels import precision_option
from mlctl.services.model.onnx_graph import Graph, has_data_files, read_graph
from mlctl.services.model.run_errors import run_error
from mlctl.services.model.tensorrt.profile import DEFAULT_LENGTHS, SizeRange
from mlctl.services.model.tensorrt.profile import PROVIDER as TENSORRT

if TYPE_CHECKING:
    from mlctl.services.model.tensorrt.provider import Providers

_PROVIDERS: Mapping[str, str] = MappingProxyType(
    {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
)
_ALIGNMENT = 16
_COPIED_BYTES = 1 << 14


class Session(Protocol):
    """Runs one model on `provider`. Call it from one thread at a time."""

    provider: str

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all outputs by name; RunError if the runtime fails.

        InputRejectedError if the runtime says that the inputs are at fault.
        """
        ...


class OnnxSession:
    """A session of ONNX Runtime; see `open_session`."""

    def __init__(self, inner: Any, provider: str) -> None:
        self.provider = provider
        self._inner = inner
        self._outputs = [output.name for output in inner.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feed = {name: _to_runtime(name, array) for name, array in inputs.items()}
        try:
            values = self._inner.run(self._outputs, feed)
        except Exception as error:
            raise run_error(error) from error
        return {
            name: _from_runtime(value) for name, value in zip(self._outputs, values, strict=True)
        }


def open_session(
    model: Path,
    provider: str = "cpu",
    threads: int = 1,
    *,
    batching: Batching | None = None,
    lengths: SizeRange = DEFAULT_LENGTHS,
) -> OnnxSession:
    """Load the ONNX file `model` on `provider`: cpu, cuda or tensorrt.

    `threads` is the number of CPU threads of one run. Only tensorrt uses `batching` and `lengths`:
    they are the shapes of its engine, which takes minutes to build the first time.
    PATH_UNSAFE or FILE_MISSING for external data outside the model's folder, PROVIDER_UNAVAILABLE
    if the provider cannot be used, UNSUPPORTED_MODEL if the runtime rejects the file.
    """
    require_onnxruntime()
    if provider == TENSORRT:
        from mlctl.services.model.tensorrt.provider import prepare_providers

        chain: Providers = prepare_providers(model, batching, lengths)
    elif provider in _PROVIDERS:
        options: Mapping[str, str] = {}
        if provider == "cuda":
            options = _cuda_options(read_graph(model))
        elif has_data_files(model):
            read_graph(model)
        chain = [(_PROVIDERS[provider], options)]
    else:
        known = ", ".join((*_PROVIDERS, TENSORRT))
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE, f"unknown provider {provider!r}; known: {known}"
        )
    return OnnxSession(load_onnx(model, chain, threads), provider)


def _cuda_options(graph: Graph) -> Mapping[str, str]:
    if any(DYNAMIC in shape[1:] for shape in graph.inputs.values()):
        # Otherwise CUDA tries every algorithm of each convolution for each new length: up to 1 s.
        return {"cudnn_conv_algo_search": "HEURISTIC"}
    return {}


# ONNX Runtime cannot switch a graph whose layers share a weight to exact kernels.
_SHARED_WEIGHT = "Attempt to replace the existing tensor"


def load_onnx(model: Path, providers: Providers, threads: int) -> Any:
    """Open ONNX Runtime's session for `model`; its first provider must be `providers[0]`."""
    # Its wheels report usage over the network unless this is set before they are imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    runtime: Any = onnxruntime  # it has types, but exports no name explicitly
    provider = providers[0][0]
    if provider not in runtime.get_available_providers():
        raise _unavailable(provider, "the installed ONNX Runtime was built without it")
    if provider != _PROVIDERS["cpu"]:
        _load_libraries(runtime, provider)
    try:
        try:
            inner = _open(runtime, model, providers, threads, precision_option(model))
        except Exception as error:
            if _SHARED_WEIGHT not in str(error):
                raise
            inner = _open(runtime, model, providers, threads, "0")
    except Exception as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"ONNX Runtime cannot load {model.name}: {error}"
        ) from error
    inner.disable_fallback()
    if inner.get_providers()[0] != provider:
        raise _unavailable(provider, f"the runtime fell back to {inner.get_providers()[0]}")
    return inner


def _open(runtime: Any, model: Path, providers: Providers, threads: int, precision: str) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads would burn the cores that the event loop and other workers need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(INT8_PRECISION, precision)
    options.log_severity_level = 4  # errors are raised, too, and some are handled
    return runtime.InferenceSession(str(model), options, providers=list(providers))


def _load_libraries(runtime: Any, provider: str) -> None:
    """Load CUDA, cuDNN and TensorRT from their Python packages, unknown to the linker."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries it did not find
        runtime.preload_dlls()
    if provider == "TensorrtExecutionProvider":
        importlib.import_module("tensorrt")


def _unavailable(provider: str, reason: str) -> MlctlError:
    return MlctlError(ErrorCode.PROVIDER_UNAVAILABLE, f"{provider} is not available: {reason}")


def _to_runtime(name: str, array: np.ndarray) -> np.ndarray:
    """Convert bytes to ONNX strings, which are UTF-8 text; align numbers."""
    if array.dtype != object:
        return array if array.flags.owndata else _aligned(array)
    try:
        texts = [value.decode() for value in array.flat]
    except UnicodeDecodeError:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"tensor {name!r}: an element is not UTF-8 text"
        ) from None
    return np.array(texts, dtype=object).reshape(array.shape)


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return the values at an address that is a multiple of 16, as numpy allocates them.

    ONNX Runtime accepts any address, but at an unaligned one some kernels add in another order: the
    last bits of an answer would depend on the position of its tensor in the request's body.
    """
    # Reading the address of a small array takes longer than copying it.
    if array.nbytes > _COPIED_BYTES and array.ctypes.data % _ALIGNMENT == 0:
        return array
    return array.copy()


def _from_runtime(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "OU":
        return array
    return np.array([str(text).encode() for text in array.flat], dtype=object).reshape(array.shape)
