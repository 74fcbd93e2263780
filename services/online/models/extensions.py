"""Triton's extensions of the protocol that this server does not have, and their errors.

Clients of Triton call them by path or method; each error names the extension and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mlctl.core.errors import ErrorCode, MlctlError

_LISTED = "GET /v2 lists the extensions that are served."
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "system_shared_memory": f"Send the tensors in the request, as binary data. {_LISTED}",
        "cuda_shared_memory": f"Send the tensors in the request, as binary data. {_LISTED}",
        "trace": f"Set MLCTL_OTLP_ENDPOINT to export traces. {_LISTED}",
        "logging": f"The log of a running server has no settings. {_LISTED}",
        "generate": f"Only language models generate text; use `infer`. {_LISTED}",
    }
)
# The beginnings of gRPC's methods.
_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "SystemSharedMemory": "system_shared_memory",
        "CudaSharedMemory": "cuda_shared_memory",
        "TraceSetting": "trace",
        "LogSettings": "logging",
    }
)


def unserved_path(parts: Sequence[str]) -> MlctlError | None:
    """Return NOT_FOUND for a path v2/..., split into `parts`, of an extension; None for another."""
    match parts[1:]:
        case ["systemsharedmemory", *_]:
            return _unserved("system_shared_memory")
        case ["cudasharedmemory", *_]:
            return _unserved("cuda_shared_memory")
        case ["trace", "setting"] | ["models", _, *_, "trace", "setting"]:
            return _unserved("trace")
        case ["logging"]:
            return _unserved("logging")
        case ["models", _, "generate"] | ["models", _, "versions", _, "generate"]:
            return _unserved("generate")
    return None


def unserved_method(method: str) -> MlctlError | None:
    """Return the error of a gRPC method of an extension, without its service; None for another."""
    for beginning, extension in _METHODS.items():
        if method.startswith(beginning):
            return _unserved(extension)
    return None


def _unserved(extension: str) -> MlctlError:
    return MlctlError(
        ErrorCode.NOT_FOUND,
        f"Triton's extension {extension!r} is not served here",
        _HINTS[extension],
    )
