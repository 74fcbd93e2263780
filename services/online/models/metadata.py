"""Descriptions of a server: server and model metadata, and the repository index.

Documents in the form of the V2 protocol's JSON; gRPC makes its messages of the same.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mlctl import __version__
from mlctl.bundle.tensors import TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.protocol.json_body import parse_object
from mlctl.services.protocol.wire import invalid

PLATFORM = "onnxruntime_onnx"
# The platform of several models that are served under one name and digest.
_TOGETHER = "mlctl_models"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")
_READY = "READY"
_UNAVAILABLE = "UNAVAILABLE"


def server_metadata() -> dict[str, Any]:
    """Return the server's name, version and extensions."""
    return {"name": "mlctl", "version": __version__, "extensions": list(EXTENSIONS)}


def is_group(serving: Serving, name: str, version: str) -> bool:
    """Return whether this is the Bento's own name: all models of the server together."""
    several = all(served.name != serving.name for served in serving.models) and name == serving.name
    return several and version in ("", serving.digest)


def metadata(serving: Serving, name: str, version: str = "") -> dict[str, Any]:
    """Return the metadata of the model `name`, or of the Bento: its digest, and no tensors.

    MODEL_NOT_FOUND for any other name.
    """
    if is_group(serving, name, version):
        versions = [serving.digest]
        document = {"name": name, "versions": versions, "platform": _TOGETHER}
        return {**document, "inputs": [], "outputs": []}
    return model_metadata(serving.find(name, version))


def is_ready(serving: Serving, name: str, version: str = "") -> bool:
    """Return whether the model `name`, or all models of the Bento `name`, are ready."""
    if is_group(serving, name, version):
        return serving.ready
    return serving.find(name, version).ready


def model_metadata(served: ServedModel) -> dict[str, Any]:
    """Return the model's versions (one: its digest) and its tensors."""
    return {
        "name": served.name,
        "versions": [served.digest],
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in served.signature.inputs],
        "outputs": [_tensor(spec) for spec in served.signature.outputs],
    }


def repository_index(serving: Serving, *, ready: bool) -> list[dict[str, str]]:
    """Return the models with their state and its reason; with `ready` only the ready ones."""
    return [_indexed(served) for served in serving.models if served.ready or not ready]


def _indexed(served: ServedModel) -> dict[str, str]:
    state, reason = (_READY, "") if served.ready else (_UNAVAILABLE, served.state)
    return {"name": served.name, "version": served.digest, "state": state, "reason": reason}


def only_ready(body: bytes) -> bool:
    """Return the field `ready` of an index request's body, which may be empty."""
    ready = parse_object(body).get("ready") if body.strip() else None
    if not isinstance(ready, bool | None):
        raise invalid("field 'ready' must be true or false")
    return bool(ready)


def reject_change(verb: str) -> NoReturn:
    """Raise NOT_PERMITTED for loading or unloading: a server keeps the models of its Bento."""
    raise MlctlError(
        ErrorCode.NOT_PERMITTED,
        f"this server does not {verb} models: it serves what it was started with",
        "`mlctl promote` puts another version into service without an interruption.",
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.dtype.value, "shape": list(spec.shape)}
