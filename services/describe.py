"""What a server tells of itself: server and model metadata and the repository index.

Documents in the form of the V2 protocol's JSON; gRPC makes its messages of the same.
"""

from __future__ import annotations

from typing import Any, NoReturn

from bundle import __version__
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import TensorSpec
from services.host import ModelHost
from services.jsonbody import parse_object
from services.wire import invalid

PLATFORM = "onnxruntime_onnx"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")
_READY = "READY"
_UNAVAILABLE = "UNAVAILABLE"


def server_metadata() -> dict[str, Any]:
    """The server's name, version and extensions."""
    return {"name": "mlctl", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(host: ModelHost) -> dict[str, Any]:
    """The model's versions (it has one: its digest) and its tensors."""
    return {
        "name": host.name,
        "versions": [host.digest],
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in host.signature.inputs],
        "outputs": [_tensor(spec) for spec in host.signature.outputs],
    }


def repository_index(host: ModelHost, *, ready: bool) -> list[dict[str, str]]:
    """The models here, with their state and the reason for it; with `ready` only ready ones."""
    if ready and not host.ready:
        return []
    state, reason = (_READY, "") if host.ready else (_UNAVAILABLE, host.state)
    return [{"name": host.name, "version": host.digest, "state": state, "reason": reason}]


def only_ready(body: bytes) -> bool:
    """What the body of an index request, which may be empty, says of `ready`."""
    ready = parse_object(body).get("ready", False) if body.strip() else False
    if not isinstance(ready, bool):
        raise invalid("field 'ready' must be true or false")
    return ready


def refuse_change(verb: str) -> NoReturn:
    """NOT_PERMITTED for loading or unloading: a server has the model of its Bento for life."""
    raise MlctlError(
        ErrorCode.NOT_PERMITTED,
        f"this server does not {verb} models: it serves the one that it was started with",
        "`mlctl promote` puts another version into service without an interruption.",
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.dtype.value, "shape": list(spec.shape)}
