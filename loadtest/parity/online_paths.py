"""The paths to a server: V2 over HTTP and gRPC, and BentoML's `/predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import httpx
import numpy as np
import orjson

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.inputs import grpc_request, infer_body
from mlctl.loadtest.parity.paths import InferencePath, json_limitation
from mlctl.loadtest.target import Address
from mlctl.services.online.http.declaration import ROUTE, argument_names
from mlctl.services.online.http.predict import to_array
from mlctl.services.protocol.json_data import decode_data
from mlctl.services.protocol.messages import SERVICE, methods
from mlctl.services.protocol.wire import declare, decode_raw

_HEADER_LENGTH = "inference-header-content-length"


class HttpPath:
    """V2 over HTTP with tensors as `binary` data or as JSON, at the URL's `path`."""

    def __init__(
        self, name: str, client: httpx.Client, path: str, signature: Signature, *, binary: bool
    ) -> None:
        self.name = name
        self._client = client
        self._path = path
        self._signature = signature
        self._binary = binary

    def limitation(self, arrays: Arrays) -> str | None:
        return None if self._binary else json_limitation(arrays)

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:  # noqa: ARG002
        return [self._request(each) for each in requests]

    def _request(self, inputs: Arrays) -> Arrays:
        body, headers = infer_body(self._signature, inputs, binary=self._binary)
        answer = _post(self._client, self._path, content=body, headers=headers)
        length = answer.headers.get(_HEADER_LENGTH)
        if length is None:
            return _tensors(self._signature, answer.json()["outputs"], b"")
        head, tail = answer.content[: int(length)], answer.content[int(length) :]
        return _tensors(self._signature, orjson.loads(head)["outputs"], tail)


class PredictPath:
    """BentoML's `/predict`, with JSON, at the URL's `path`."""

    name = ROUTE

    def __init__(self, client: httpx.Client, path: str, signature: Signature) -> None:
        self._client = client
        self._path = path
        self._signature = signature

    def limitation(self, arrays: Arrays) -> str | None:
        return json_limitation(arrays)

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:  # noqa: ARG002
        return [self._request(each) for each in requests]

    def _request(self, inputs: Arrays) -> Arrays:
        names = argument_names(self._signature.inputs)
        arguments = {names[name]: _as_lists(array) for name, array in inputs.items()}
        found = _post(self._client, self._path, json=arguments).json()
        outputs = self._signature.outputs
        if len(outputs) == 1:
            return {outputs[0].name: to_array(outputs[0], found)}
        fields = argument_names(outputs)
        return {spec.name: to_array(spec, found[fields[spec.name]]) for spec in outputs}


class GrpcPath:
    """V2 over gRPC, with raw contents."""

    name = "gRPC"

    def __init__(self, address: Address, model: str, signature: Signature) -> None:
        self._address = address
        self._model = model
        self._signature = signature

    def limitation(self, arrays: Arrays) -> str | None:  # noqa: ARG002 - it carries every value
        return None

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:  # noqa: ARG002
        options = [("grpc.max_receive_message_length", -1)]
        untyped: Any = grpc  # its clients have no types
        with untyped.insecure_channel(self._address.authority, options=options) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            return [self._request(call, each) for each in requests]

    def _request(self, call: Any, inputs: Arrays) -> Arrays:
        request = grpc_request(self._signature, inputs, self._model)
        try:
            content = call(request, metadata=tuple(self._address.headers.items()), timeout=60)
        except grpc.RpcError as error:
            failed: Any = error
            lost = failed.code() is grpc.StatusCode.UNAVAILABLE
            reason = f"{failed.code().name}: {failed.details()}"
            raise _no_answer(reason, lost=lost) from error
        answer = methods()["ModelInfer"].response.FromString(content)
        specs = {spec.name: spec for spec in self._signature.outputs}
        return {
            each.name: decode_raw(declare(specs, each.name, each.datatype, list(each.shape)), raw)
            for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }


def _post(client: httpx.Client, path: str, **content: Any) -> httpx.Response:
    try:
        answer = client.post(path, **content)
    except httpx.TransportError as error:
        raise _no_answer(str(error) or type(error).__name__, lost=True) from error
    if answer.status_code != 200:
        raise _no_answer(f"{answer.status_code}: {answer.text[:200]}", lost=False)
    return answer


def _no_answer(reason: str, *, lost: bool) -> MlctlError:
    code = ErrorCode.UNAVAILABLE if lost else ErrorCode.PARITY_FAILED
    return MlctlError(code, f"the server did not answer: {reason}")


def _tensors(signature: Signature, outputs: Sequence[Mapping[str, Any]], tail: bytes) -> Arrays:
    """Return the outputs of an answer; `tail` holds their binary data in order."""
    specs = {spec.name: spec for spec in signature.outputs}
    found: dict[str, np.ndarray] = {}
    for each in outputs:
        declared = declare(specs, each["name"], each["datatype"], each["shape"])
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[each["name"]] = decode_data(declared, each["data"])
            continue
        found[each["name"]] = decode_raw(declared, tail[:size])
        tail = tail[size:]
    return found


def _as_lists(array: np.ndarray) -> Any:
    if array.dtype != object:
        return array.tolist()
    return np.array([value.decode() for value in array.flat], object).reshape(array.shape).tolist()


def open_online(
    client: httpx.Client,
    grpc_address: Address,
    model: str,
    signature: Signature,
    *,
    alone: bool = True,
) -> list[InferencePath]:
    """Return every path to `model`; `alone` says that the server has no other model.

    `client` has the server's base URL and its token.
    """
    path = f"/v2/models/{model}/infer"
    return [
        HttpPath("HTTP", client, path, signature, binary=True),
        HttpPath("HTTP, JSON", client, path, signature, binary=False),
        PredictPath(client, ROUTE if alone else f"{ROUTE}/{model}", signature),
        GrpcPath(grpc_address, model, signature),
    ]
