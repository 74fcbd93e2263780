"""The V2 protocol over HTTP, except infer requests, which `connection.protocol` answers.

A plain ASGI application in front of BentoML's middleware. Limits come before parsing: the
declared length, then the arrived one. Errors are
`{"error": sentence, "code": stable name}` and show nothing of the server's inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.admission import Hold
from services.online.batching.scheduler import deadline_exceeded
from services.online.http.fields import fields_of
from services.online.http.inference import InferHandler, PendingRequest
from services.online.http.responses import MethodError, Response, error_response, json_response
from services.online.http.sse import EventWriter, GoneError, Message, Receive, Send, send_events
from services.online.models.metadata import (
    is_ready,
    metadata,
    only_ready,
    reject_change,
    repository_index,
    server_metadata,
)
from services.online.models.repository import Serving
from services.online.models.statistics import model_config, model_statistics
from services.online.observability.calls import RequestRecord

__all__ = [
    "App",
    "GoneError",
    "Message",
    "Receive",
    "Send",
    "V2App",
    "close_if_expecting",
    "read_in_time",
    "send_error",
    "send_response",
]

App = Callable[[Message, Receive, Send], Awaitable[None]]
# Other servers of the protocol use the second name.
_STREAMS = frozenset({"infer_stream", "generate_stream"})
# The number of parts of /v2/models/NAME; longer paths name an operation of the model.
_NAMED = 3
_MODEL_PATHS: tuple[list[str], ...] = ([], ["ready"], ["config"], ["stats"])


class BodyLimits(Protocol):
    """A limit on bodies."""

    def check_size(self, size: int) -> None:
        """Raise PAYLOAD_TOO_LARGE for a body of `size` bytes above the limit."""
        ...


class V2App:
    """Answers every path under /v2, for one model or for several with an `InferHandler` each.

    The first one also counts requests that name no model.
    """

    def __init__(self, serving: Serving, inference: InferHandler, *others: InferHandler) -> None:
        self._serving = serving
        self._inference = inference
        self._inferences = {each.name: each for each in (inference, *others)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the V2 app takes HTTP, not {scope['type']}")
        parts = scope["path"].strip("/").split("/")
        try:
            verb = parts[-1] if parts[1:2] == ["models"] and len(parts) > _NAMED else ""
            if verb == "infer":
                await self._reject_infer(scope, parts, send)
            elif verb in _STREAMS:
                await self._infer_stream(scope, parts, receive, send)
            elif parts[1:2] == ["repository"]:
                _require_method(scope, "POST")
                await send_response(send, await self._repository(parts[2:], receive))
            else:
                status, document = self._describe(parts)
                _require_method(scope, "GET", "HEAD")
                await send_response(send, json_response(status, document))
        except MlctlError as error:
            await send_error(send, error)
        except GoneError:
            return  # the client disconnected

    def _describe(self, parts: list[str]) -> tuple[int, Mapping[str, Any]]:
        match parts[1:]:
            case []:
                return 200, server_metadata()
            case ["health", "live"]:
                return (200 if self._serving.live else 503), {"live": self._serving.live}
            case ["health", "ready"]:
                # The protocol's text calls this one `live`, too.
                return _readiness(self._serving.ready, live=self._serving.live)
            case ["models", "stats"] if "stats" not in self._inferences:
                return 200, model_statistics(*self._serving.models)
            case ["models", name, *rest]:
                return self._describe_model(name, rest)
        raise no_such_path()

    def _describe_model(self, name: str, rest: list[str]) -> tuple[int, Mapping[str, Any]]:
        version = ""
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        if rest not in _MODEL_PATHS:
            raise no_such_path()
        match rest:
            case ["ready"]:
                return _readiness(is_ready(self._serving, name, version), name=name)
            case ["config"]:
                return 200, model_config(self._serving.find(name, version))
            case ["stats"]:
                return 200, model_statistics(self._serving.find(name, version))
        return 200, metadata(self._serving, name, version)

    async def _repository(self, parts: list[str], receive: Receive) -> Response:
        match parts:
            case ["index"]:
                end = asyncio.get_running_loop().time() + self._inference.seconds
                with Hold(self._serving.inflight) as hold:
                    body = await read_in_time(receive, self._inference, hold, end)
                return json_response(200, repository_index(self._serving, ready=only_ready(body)))
            case ["models", _, "load" | "unload" as verb]:
                reject_change(verb)
        raise no_such_path()

    def _meant(self, parts: list[str]) -> InferHandler:
        """Return the inference of the model that the path names, else the first one."""
        return self._inferences.get(parts[2] if len(parts) > 2 else "", self._inference)

    async def _reject_infer(self, scope: Message, parts: list[str], send: Send) -> None:
        """Reject what the HTTP protocol leaves: another method, or a model that is not here."""
        headers, inference = fields_of(scope["headers"]), self._meant(parts)
        request_id = inference.request_id(headers)
        record = inference.observe(headers, request_id)
        error = no_such_path()
        try:
            _require_method(scope, "POST")
            require_infer_path(self._serving, parts)
        except MlctlError as found:
            error = found
        response = inference.reject(error, request_id, record)
        close_if_expecting(headers, response)
        await send_response(send, response)

    async def _infer_stream(
        self, scope: Message, parts: list[str], receive: Receive, send: Send
    ) -> None:
        headers, inference = fields_of(scope["headers"]), self._meant(parts)
        request_id = inference.request_id(headers)
        record = inference.observe(headers, request_id)
        events = EventWriter(send, request_id)
        try:
            _require_method(scope, "POST")
            require_infer_path(self._serving, parts)
            await _stream(inference, headers, events, receive, record)
            inference.report(record)
        except (GoneError, asyncio.CancelledError) as error:
            inference.disconnected(record)
            if not isinstance(error, GoneError):
                raise
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            response = inference.reject(error, request_id, record)
            if events.started:
                await events.end(b"error", response.body)
            else:
                close_if_expecting(headers, response)
                await send_response(send, response)


def require_infer_path(serving: Serving, parts: list[str]) -> None:
    """Check a path v2/models/NAME/.../VERB, split into `parts`.

    MODEL_NOT_FOUND if no such model is served, NOT_FOUND for another path.
    """
    match parts[2:-1]:
        case [name]:
            serving.find(name)
        case [name, "versions", version]:
            serving.find(name, version)
        case _:
            raise no_such_path()


def _readiness(ready: bool, **fields: object) -> tuple[int, Mapping[str, Any]]:
    return (200 if ready else 503), {**fields, "ready": ready}


async def _stream(
    inference: InferHandler,
    headers: Mapping[bytes, bytes],
    events: EventWriter,
    receive: Receive,
    record: RequestRecord | None,
) -> None:
    deadline = asyncio.get_running_loop().time() + inference.seconds
    with PendingRequest(inference.inflight) as pending:
        inference.read_headers(pending, headers)
        body = await read_in_time(receive, inference, pending, deadline)
        if record is not None:
            record.bytes_in = len(body)
        streamed = await inference.submit_stream(pending, body)
        await send_events(streamed, inference, events, receive)


async def read_in_time(receive: Receive, limits: BodyLimits, hold: Hold, deadline: float) -> bytes:
    """Read the complete body; raise DEADLINE_EXCEEDED at the loop's time `deadline`."""
    try:
        async with asyncio.timeout_at(deadline):
            return await _read_body(receive, limits, hold)
    except TimeoutError:
        raise deadline_exceeded() from None


async def _read_body(receive: Receive, limits: BodyLimits, hold: Hold) -> bytes:
    """Read the complete body; raise PAYLOAD_TOO_LARGE or BusyError as soon as it is too much."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        limits.check_size(len(body))
        hold.grow(len(body))
        if not message.get("more_body"):
            return bytes(body)


def _require_method(scope: Message, *allowed: str) -> None:
    if scope["method"] not in allowed:
        raise MethodError(allowed)


def no_such_path() -> MlctlError:
    """Return the error of a path that is none of the V2 protocol's."""
    return MlctlError(ErrorCode.NOT_FOUND, "the V2 protocol has no such path")


def close_if_expecting(headers: Mapping[bytes, bytes], response: Response) -> None:
    """Make a rejection end the connection of a client that expects 100 Continue.

    The client may never send the body, and the server would take its next request for it.
    """
    if b"expect" in headers:
        response.headers.append((b"connection", b"close"))


async def send_error(
    send: Send, error: MlctlError, headers: Mapping[bytes, bytes] = MappingProxyType({})
) -> None:
    """Answer a request, which has `headers`, with the error table's status and headers."""
    response = error_response(error)
    close_if_expecting(headers, response)
    await send_response(send, response)


async def send_response(send: Send, response: Response) -> None:
    """Send a whole response."""
    start = {"type": "http.response.start", "status": response.status, "headers": response.headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})
