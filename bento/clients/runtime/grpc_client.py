"""Clients over gRPC, for plain and for asyncio code. Needs the extra `grpc`."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Self

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from .calls import Call, Retry
from .errors import ModelError, ServerError, error_of
from .grpc_messages import INFER, METADATA, messages
from .http_client import DEFAULT_RETRY, DEFAULT_SECONDS
from .specs import Contract, Meta, Request, Response
from .wire import from_bytes, to_bytes

_DETAILS = "grpc-status-details-bin"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
# What a status without the server's own code means in HTTP: that of a proxy, or of the library.
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
Metadatum = tuple[str, str]


class _Shared(Generic[Request, Response]):
    """What both clients do without waiting for anything."""

    def __init__(
        self,
        contract: Contract[Request, Response],
        token: str | None,
        timeout: float,
        retry: Retry,
    ) -> None:
        self._contract = contract
        self._token = token
        self._timeout = timeout
        self._retry = retry

    def _begin(self, timeout: float | None) -> Call:
        seconds = self._timeout if timeout is None else timeout
        return Call(seconds, self._retry, time.monotonic)

    def _metadata(self, request_id: str | None = None) -> Sequence[Metadatum]:
        token = () if self._token is None else (("authorization", f"Bearer {self._token}"),)
        return (*token, *(() if request_id is None else (("x-request-id", request_id),)))

    def _message(self, request: Request) -> bytes:
        arrays = self._contract.arrays(request)
        message = messages().infer_request(model_name=self._contract.name)
        for spec in self._contract.inputs:
            array = arrays[spec.name]
            message.inputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
            message.raw_input_contents.append(to_bytes(spec, array))
        content: bytes = message.SerializeToString()
        return content

    def _read(self, content: bytes, request_id: str | None) -> Response:
        try:
            message = messages().infer_response.FromString(content)
            raw = zip(message.outputs, message.raw_output_contents, strict=True)
            tensors = {tensor.name: (tuple(tensor.shape), data) for tensor, data in raw}
            arrays = {}
            for spec in self._contract.outputs:
                shape, data = tensors[spec.name]
                spec.check_shape(shape)
                arrays[spec.name] = from_bytes(spec, shape, data)
        except (DecodeError, ValueError, LookupError, struct.error, ModelError) as error:
            raise ServerError("the answer is not one of the protocol") from error
        parameters = {name: _value(each) for name, each in message.parameters.items()}
        meta = Meta(message.model_name, message.model_version, request_id or "", parameters)
        return self._contract.answer(arrays, meta)

    def _question(self) -> bytes:
        message = messages().metadata_request(name=self._contract.name)
        content: bytes = message.SerializeToString()
        return content

    def _digest(self, content: bytes) -> str:
        try:
            return str(messages().metadata.FromString(content).versions[-1])
        except (DecodeError, IndexError) as error:
            raise ServerError("the server's description of the model is not readable") from error


class GrpcClient(_Shared[Request, Response]):
    """Asks the model over gRPC at `target` (HOST:PORT). May be used by several threads at once.

    `timeout` is in seconds, for a call with all of its attempts. `channel` replaces the plain
    one, for TLS; whoever gives one closes it.
    """

    def __init__(
        self,
        contract: Contract[Request, Response],
        target: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        channel: Any = None,
    ) -> None:
        super().__init__(contract, token, timeout, retry)
        self._owned = channel is None
        self._channel: Any = channel or _open(grpc, target)
        self._infer: Any = self._channel.unary_unary(INFER)
        self._describe: Any = self._channel.unary_unary(METADATA)

    def infer(
        self, request: Request, *, timeout: float | None = None, request_id: str | None = None
    ) -> Response:
        """The model's answer; a `ModelError` says why there is none."""
        call = self._begin(timeout)
        message, metadata = self._message(request), self._metadata(request_id)
        while True:
            try:
                return self._read(_ask(self._infer, message, call.left, metadata), request_id)
            except ModelError as error:
                seconds = call.pause(error)
            time.sleep(seconds)

    def served_digest(self) -> str:
        """The digest of the model that the server has; this client was made for `DIGEST`."""
        return self._digest(_ask(self._describe, self._question(), self._timeout, self._metadata()))

    def close(self) -> None:
        """Close the connection."""
        if self._owned:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGrpcClient(_Shared[Request, Response]):
    """As `GrpcClient`, for asyncio."""

    def __init__(
        self,
        contract: Contract[Request, Response],
        target: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        channel: Any = None,
    ) -> None:
        super().__init__(contract, token, timeout, retry)
        self._owned = channel is None
        self._channel: Any = channel or _open(grpc.aio, target)
        self._infer: Any = self._channel.unary_unary(INFER)
        self._describe: Any = self._channel.unary_unary(METADATA)

    async def infer(
        self,
        request: Request,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Response:
        """The model's answer; a `ModelError` says why there is none."""
        call = self._begin(timeout)
        message, metadata = self._message(request), self._metadata(request_id)
        while True:
            try:
                content = await _ask_async(self._infer, message, call.left, metadata)
                return self._read(content, request_id)
            except ModelError as error:
                seconds = call.pause(error)
            await asyncio.sleep(seconds)

    async def served_digest(self) -> str:
        """The digest of the model that the server has; this client was made for `DIGEST`."""
        question, metadata = self._question(), self._metadata()
        return self._digest(await _ask_async(self._describe, question, self._timeout, metadata))

    async def close(self) -> None:
        """Close the connection."""
        if self._owned:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _open(kind: Any, target: str) -> Any:
    return kind.insecure_channel(target, options=_OPTIONS)


def _ask(method: Any, message: bytes, seconds: float, metadata: Sequence[Metadatum]) -> bytes:
    try:
        content: bytes = method(message, timeout=seconds, metadata=metadata)
    except grpc.RpcError as error:
        raise _refusal(error) from error
    return content


async def _ask_async(
    method: Any, message: bytes, seconds: float, metadata: Sequence[Metadatum]
) -> bytes:
    try:
        content: bytes = await method(message, timeout=seconds, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        raise _refusal(error) from error
    return content


def _refusal(error: Any) -> ModelError:
    trailers: Iterable[tuple[str, Any]] = error.trailing_metadata() or ()
    said = {str(key): value for key, value in trailers}
    seconds = str(said.get("retry-after", ""))
    return error_of(
        error.details() or "the call failed",
        str(said.get("mlctl-code", "")),
        _hint(said.get(_DETAILS, b"")),
        _STATUSES.get(error.code(), 500),
        float(seconds) if seconds.isdigit() else None,
    )


def _hint(details: bytes) -> str:
    info = ErrorInfo()
    try:
        found = any(packed.Unpack(info) for packed in Status.FromString(details).details)
    except DecodeError:  # a proxy's
        return ""
    return str(info.metadata["hint"]) if found else ""


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)
