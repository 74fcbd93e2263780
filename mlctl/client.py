"""A client of any served model, over the Open Inference Protocol with JSON.

For a service of your own generate a typed client with `mlctl client`: it retries, has asyncio and
gRPC, and sends binary tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlctl.bundle.tensors import Datatype
from mlctl.core.errors import ErrorCode, MlctlError

TIMEOUT_SECONDS = 30.0
# The types of pandas.NA and pandas.NaT.
_MISSING = ("NAType", "NaTType")


class Client:
    """Calls the server or deployment at `url`; a `token` is sent as a bearer token."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Return whether the server takes requests."""
        try:
            return self._http.get("/v2/health/ready").is_success
        except httpx.TransportError:
            return False

    def metadata(self, model: str) -> dict[str, Any]:
        """Return the model's inputs, outputs and version, which is its digest."""
        return self._call("GET", f"/v2/models/{quote(model, safe='')}")

    def infer(self, model: str, inputs: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        """Return the outputs for `inputs`, both by the names of the tensors.

        Values are sent as they are, so that the server rejects those that its datatypes cannot
        represent, such as 1.9 for an integer. None, NaN and pandas.NA are missing values.
        MODEL_NOT_FOUND, INVALID_INPUT and whatever else the server answers; UNAVAILABLE without an
        answer.
        """
        stated = {each["name"]: each["datatype"] for each in self.metadata(model)["inputs"]}
        tensors = [_tensor(name, value, stated.get(name)) for name, value in inputs.items()]
        path = f"/v2/models/{quote(model, safe='')}/infer"
        answer = self._call("POST", path, {"inputs": tensors})
        return {each["name"]: _array(each) for each in answer["outputs"]}

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise MlctlError(ErrorCode.UNAVAILABLE, "the server did not answer") from error
        try:
            document: dict[str, Any] = response.json()
        except ValueError:
            document = {}
        if response.is_success:
            return document
        code = document.get("code")
        known = next((each for each in ErrorCode if each == code), ErrorCode.UNAVAILABLE)
        message = document.get("error", f"the server answered with status {response.status_code}")
        raise MlctlError(known, str(message), document.get("hint"))


def _tensor(name: str, value: ArrayLike, datatype: str | None) -> dict[str, Any]:
    """Return the JSON form of one input; a name that the server does not state is its error."""
    if datatype is None:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"the model has no input {name!r}")
    # Of a list numpy would make values of one type: of 1 and "a" two texts.
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    data = array.ravel().tolist()
    try:
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            data = [_json(each) for each in data]
    except ValueError as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"input {name!r}: {error}") from error
    return {"name": name, "datatype": datatype, "shape": array.shape, "data": data}


def _json(value: object) -> object:
    """Return a value as JSON has it, null for a missing one; ValueError if JSON has none."""
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case bool() | int() | str():
            return value
        case float() if not math.isinf(value):
            return None if math.isnan(value) else value
        case bytes():
            return value.decode()
        case list():
            raise ValueError("its rows have different lengths")
    if value is None or type(value).__name__ in _MISSING:
        return None
    raise ValueError(f"{value!r} cannot be sent as JSON")


def _array(tensor: Mapping[str, Any]) -> NDArray[Any]:
    dtype = Datatype(tensor["datatype"]).numpy_name
    return np.array(tensor["data"], dtype).reshape(tensor["shape"])
