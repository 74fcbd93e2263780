"""The session: a loaded model file that turns named arrays into named arrays.

A model's external data must lie beside it, and the execution provider that was asked
for is the one that runs: a silent fallback is an error. BYTES tensors are object
arrays of `bytes` on this side of the seam, whatever the runtime wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.paths import resolve_inside
from services.runtime import require_onnxruntime

_PROVIDERS: Mapping[str, str] = MappingProxyType(
    {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
)


class Session(Protocol):
    """Runs one model; `provider` says on what. Safe to call from any one thread at a time."""

    provider: str

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name for `inputs` by name; the runtime's own errors pass through."""
        ...


class FunctionSession:
    """A session around a plain function; the in-memory twin of a runtime's."""

    def __init__(
        self, function: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
    ) -> None:
        self.provider = "memory"
        self._function = function

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._function(inputs)


class OnnxSession:
    """A session of ONNX Runtime; made by `open_session`."""

    def __init__(self, inner: Any, provider: str) -> None:
        self.provider = provider
        self._inner = inner
        self._outputs = [output.name for output in inner.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feed = {name: _to_runtime(name, array) for name, array in inputs.items()}
        values = self._inner.run(None, feed)
        return {
            name: _from_runtime(value) for name, value in zip(self._outputs, values, strict=True)
        }


def open_session(model: Path, provider: str = "cpu", threads: int = 1) -> OnnxSession:
    """Load the ONNX file `model` on `provider` ("cpu" or "cuda") with `threads` per run.

    PATH_UNSAFE or FILE_MISSING for external data that is not beside the model,
    PROVIDER_UNAVAILABLE when the provider cannot be had, UNSUPPORTED_MODEL when the
    runtime refuses the file.
    """
    require_onnxruntime()
    import onnxruntime

    runtime: Any = onnxruntime  # it has types, but exports no name explicitly
    wanted = _available_provider(runtime, provider)
    check_external_data(model)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads would burn the cores that the event loop and other workers need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        inner = runtime.InferenceSession(str(model), options, providers=[wanted])
    except Exception as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"ONNX Runtime cannot load {model.name}: {error}"
        ) from error
    inner.disable_fallback()
    if inner.get_providers()[0] != wanted:
        raise _unavailable(wanted, f"the runtime fell back to {inner.get_providers()[0]}")
    return OnnxSession(inner, provider)


def check_external_data(model: Path) -> None:
    """Refuse tensors of `model` whose data lies outside of its directory or is missing."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except FileNotFoundError:
        raise MlctlError(ErrorCode.FILE_MISSING, f"file {model.name!r} is missing") from None
    except Exception as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"{model.name} is not an ONNX model: {error}"
        ) from error
    for tensor in _tensors(proto):
        if uses_external_data(tensor):
            location = ExternalDataInfo(tensor).location
            if not resolve_inside(model.parent, location).is_file():
                raise MlctlError(
                    ErrorCode.FILE_MISSING, f"external data file {location!r} is missing"
                )


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto in a message, however deep: initializers, constants, subgraphs."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for child in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.name == "TensorProto":
                yield child
            else:
                yield from _tensors(child)


def _available_provider(runtime: Any, provider: str) -> str:
    wanted = _PROVIDERS.get(provider)
    if wanted is None:
        known = ", ".join(_PROVIDERS)
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE, f"provider {provider!r} is unknown; known: {known}"
        )
    if wanted not in runtime.get_available_providers():
        raise _unavailable(wanted, "the installed ONNX Runtime was built without it")
    return wanted


def _unavailable(wanted: str, reason: str) -> MlctlError:
    return MlctlError(ErrorCode.PROVIDER_UNAVAILABLE, f"{wanted} was asked for, but {reason}")


def _to_runtime(name: str, array: np.ndarray) -> np.ndarray:
    """ONNX strings are UTF-8 text; everything else goes through as it is."""
    if array.dtype != object:
        return array
    try:
        texts = [value.decode() for value in array.flat]
    except UnicodeDecodeError:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"tensor {name!r}: an element is not UTF-8 text"
        ) from None
    return np.array(texts, dtype=object).reshape(array.shape)


def _from_runtime(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "OU":
        return array
    return np.array([str(text).encode() for text in array.flat], dtype=object).reshape(array.shape)
