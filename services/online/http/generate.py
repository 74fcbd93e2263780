"""Generated text over HTTP: OpenAI's /v1 endpoints, and `generate` and `generate_stream` of V2.

Streamed answers are server-sent events. A client that disconnects frees its place in the engine for
the next step.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bundle.errors import ErrorCode, MlctlError
from services.generate.engine import FinishReason, GenerationRequest, TokenPiece
from services.generate.requests import (
    ChatRequest,
    CompletionRequest,
    ParameterError,
    V2Request,
    chat,
    completion,
    parse_request,
    v2,
)
from services.generate.text import TextCodec
from services.online.batching.generation import Timing, TokenStream
from services.online.http.app import (
    GoneError,
    Message,
    Receive,
    Send,
    close_if_expecting,
    read_in_time,
    send_response,
)
from services.online.http.fields import fields_of
from services.online.http.inference import InferHandler, PendingRequest
from services.online.http.responses import MethodError, Response, make_response
from services.online.http.sse import HEARTBEAT_SECONDS, EventWriter
from services.online.models.generator import ServedGenerator
from services.online.models.repository import Serving
from services.online.observability.calls import HTTP
from services.protocol.compression import IDENTITY

_V1 = "/v1/"
_V2_VERBS = frozenset({"generate", "generate_stream"})
_DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": nothing yet\n\n"
_JSON = b"application/json"
# OpenAI's types of errors by HTTP status; others are "server_error".
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error",
    415: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip


@dataclass(slots=True)
class GeneratedAnswer:
    """What came of an answer so far; an API's form writes it as JSON."""

    name: str
    version: str
    codec: TextCodec
    request: GenerationRequest
    created: int = field(default_factory=lambda: int(time.time()))
    identity: str = field(default_factory=lambda: secrets.token_hex(12))
    pieces: list[TokenPiece] = field(default_factory=list)
    tokens: int = 0

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer ended, or None if it has not."""
        return self.pieces[-1].finish if self.pieces else None

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens."""
        prompt = len(self.request.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.tokens,
            "total_tokens": prompt + self.tokens,
        }


class CompletionForm:
    """Answers of /v1/completions."""

    usage = False

    def __init__(self, request: CompletionRequest) -> None:
        self.stream = request.stream
        if request.stream_options is not None:
            self.usage = request.stream_options.include_usage

    def whole(self, answer: GeneratedAnswer) -> dict[str, Any]:
        """Return the document of a whole answer."""
        choice = self._choice(answer, answer.pieces, answer.finish)
        return {**self._head(answer), "choices": [choice], "usage": answer.usage}

    def events(self, answer: GeneratedAnswer, pieces: list[TokenPiece]) -> Iterator[dict[str, Any]]:
        """Yield the documents of events for `pieces`, the last ones of `answer`."""
        for piece in pieces:
            if piece.text or piece.finish or piece.logprobs:
                yield {
                    **self._head(answer),
                    "choices": [self._choice(answer, [piece], piece.finish)],
                }

    def end(self, answer: GeneratedAnswer) -> Iterator[dict[str, Any]]:
        """Yield the documents of events after the last piece."""
        if self.usage:
            yield {**self._head(answer), "choices": [], "usage": answer.usage}

    def _head(self, answer: GeneratedAnswer) -> dict[str, Any]:
        head = {"id": f"cmpl-{answer.identity}", "object": "text_completion"}
        return {**head, "created": answer.created, "model": answer.name}

    def _choice(
        self, answer: GeneratedAnswer, pieces: list[TokenPiece], finish: FinishReason | None
    ) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        found = _logprobs(answer, pieces)
        logprobs = None
        if found is not None:
            logprobs = {
                "tokens": [each["token"] for each in found],
                "token_logprobs": [each["logprob"] for each in found],
                "top_logprobs": [
                    {top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in found
                ],
                "text_offset": [],
            }
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}


class ChatForm(CompletionForm):
    """Answers of /v1/chat/completions."""

    def __init__(self, request: ChatRequest) -> None:
        self.stream = request.stream
        if request.stream_options is not None:
            self.usage = request.stream_options.include_usage
        self._kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self._begun = False

    def _head(self, answer: GeneratedAnswer) -> dict[str, Any]:
        head = {"id": f"chatcmpl-{answer.identity}", "object": self._kind}
        return {**head, "created": answer.created, "model": answer.name}

    def _choice(
        self, answer: GeneratedAnswer, pieces: list[TokenPiece], finish: FinishReason | None
    ) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        message = {"content": text} if self._begun else {"role": "assistant", "content": text}
        self._begun = True
        found = _logprobs(answer, pieces)
        return {
            "index": 0,
            "delta" if self.stream else "message": message,
            "logprobs": None if found is None else {"content": found},
            "finish_reason": finish,
        }


class V2Form(CompletionForm):
    """Answers of the V2 `generate` calls."""

    def __init__(self, *, stream: bool) -> None:
        self.stream = stream

    def whole(self, answer: GeneratedAnswer) -> dict[str, Any]:
        return {**self._head(answer), "text_output": answer.text}

    def events(self, answer: GeneratedAnswer, pieces: list[TokenPiece]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            if piece.text:
                yield {**self._head(answer), "text_output": piece.text}

    def _head(self, answer: GeneratedAnswer) -> dict[str, Any]:
        return {"model_name": answer.name, "model_version": answer.version}


class GenerateApp:
    """The ASGI application of the language models of a server."""

    def __init__(self, serving: Serving, *handlers: InferHandler) -> None:
        self._serving = serving
        self._handlers = {each.name: each for each in handlers}
        self._default = handlers[0]
        self.models = {
            host.name: host for host in serving.hosts if isinstance(host, ServedGenerator)
        }

    def answers(self, path: str) -> bool:
        """Whether a path is this application's."""
        if path.startswith(_V1):
            return True
        parts = path.strip("/").split("/")
        return parts[0] == "v2" and parts[-1] in _V2_VERBS and self._named(parts) in self.models

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = fields_of(scope["headers"])
        path, method = scope["path"].rstrip("/"), scope["method"]
        handler = self._handlers.get(self._named(path.strip("/").split("/")), self._default)
        request_id = handler.request_id(headers)
        record = handler.observe(headers, request_id)
        events = EventWriter(send, request_id)
        try:
            if path == "/v1/models" or path.startswith("/v1/models/"):
                _require(method, "GET", "HEAD")
                await send_response(send, self._list(path.removeprefix("/v1/models").strip("/")))
                return
            read = self._reader(path)
            _require(method, "POST")
            end = asyncio.get_running_loop().time() + handler.seconds
            with PendingRequest(handler.inflight) as pending:
                handler.read_headers(pending, headers)
                _require_plain(pending)
                body = await read_in_time(receive, handler, pending, end)
                if record is not None:
                    record.bytes_in = len(body)
                model, request, form = read(body)
                answer = GeneratedAnswer(model.name, model.digest, model.codec, request)
                stream = model.generate(request)
                await _answer(stream, form, answer, events, send, receive)
            model.count(HTTP, None)
            handler.report(record)
        except (GoneError, asyncio.CancelledError) as error:
            handler.disconnected(record)
            if not isinstance(error, GoneError):
                raise
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            response = handler.reject(error, request_id, record)
            if path.startswith(_V1.rstrip("/")):
                response = _openai_error(response, getattr(error, "param", None))
            if events.started:
                await events.write(b"data: %b\n\n" % response.body, more=False)
            else:
                close_if_expecting(headers, response)
                await send_response(send, response)

    def _named(self, parts: list[str]) -> str:
        return parts[2] if parts[:2] == ["v2", "models"] and len(parts) > 3 else ""

    def _reader(
        self, path: str
    ) -> Callable[[bytes], tuple[ServedGenerator, GenerationRequest, CompletionForm]]:
        if path == "/v1/completions":
            return self._read_completion
        if path == "/v1/chat/completions":
            return self._read_chat
        parts = path.strip("/").split("/")
        match parts:
            case ["v2", "models", name, ("generate" | "generate_stream") as verb]:
                model = self._find(name)
            case ["v2", "models", name, "versions", version, verb] if verb in _V2_VERBS:
                model = self._find(name, version)
            case _:
                raise MlctlError(ErrorCode.NOT_FOUND, f"there is no path {path}")

        def read(body: bytes) -> tuple[ServedGenerator, GenerationRequest, CompletionForm]:
            request = v2(parse_request(V2Request, body), model.codec, model.max_tokens)
            return model, request, V2Form(stream=verb == "generate_stream")

        return read

    def _read_completion(
        self, body: bytes
    ) -> tuple[ServedGenerator, GenerationRequest, CompletionForm]:
        parsed = parse_request(CompletionRequest, body)
        model = self._find(parsed.model)
        return model, completion(parsed, model.codec), CompletionForm(parsed)

    def _read_chat(self, body: bytes) -> tuple[ServedGenerator, GenerationRequest, CompletionForm]:
        parsed = parse_request(ChatRequest, body)
        model = self._find(parsed.model)
        return model, chat(parsed, model.codec, model.max_tokens), ChatForm(parsed)

    def _find(self, name: str, version: str = "") -> ServedGenerator:
        host = self._serving.find(name, version)
        if not isinstance(host, ServedGenerator):
            raise ParameterError("model", f"model {name!r} does not generate text")
        if not host.ready and not host.draining:
            raise MlctlError(ErrorCode.UNAVAILABLE, f"model {name!r} is {host.state}")
        return host

    def _list(self, name: str) -> Response:
        models = [
            {"id": each, "object": "model", "created": 0, "owned_by": "mlctl", "root": host.digest}
            for each, host in self.models.items()
        ]
        if name:
            self._find(name)
            return _json(next(each for each in models if each["id"] == name))
        return _json({"object": "list", "data": models})


async def _answer(
    stream: TokenStream,
    form: CompletionForm,
    answer: GeneratedAnswer,
    events: EventWriter,
    send: Send,
    receive: Receive,
) -> None:
    """Send the answer as events or as a whole; GoneError if the client disconnects first."""
    watch = asyncio.ensure_future(receive())
    watch.add_done_callback(lambda _: stream.close())
    try:
        async for pieces in _or_heartbeat(stream, streaming=form.stream):
            if not pieces:
                await events.write(_HEARTBEAT)
                continue
            answer.tokens = stream.sequence.generated
            answer.pieces.extend(pieces)
            if form.stream:
                if not events.started:
                    events.headers.append((b"server-timing", _timing(stream.timing)))
                written = b"".join(map(_event, form.events(answer, pieces)))
                if written:
                    await events.write(written)
        if watch.done():
            raise GoneError
        if form.stream:
            rest = b"".join(map(_event, form.end(answer)))
            await events.write(rest + _DONE, more=False)
        else:
            seconds = stream.last - stream.arrived - stream.timing.first_token
            timing = b"%b, decode;dur=%.3f" % (_timing(stream.timing), seconds * 1e3)
            extra = [(b"server-timing", timing), (b"x-request-id", events.request_id)]
            body = orjson.dumps(form.whole(answer))
            await send_response(send, make_response(200, _JSON, body, extra))
    finally:
        watch.cancel()
        stream.close()


async def _or_heartbeat(stream: TokenStream, *, streaming: bool) -> Any:
    """Yield the lists of pieces, and while streaming [] when none came for `HEARTBEAT_SECONDS`."""
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS if streaming else None):
                pieces = await anext(stream)
        except TimeoutError:
            yield []
        except StopAsyncIteration:
            return
        else:
            yield pieces


def _logprobs(answer: GeneratedAnswer, pieces: list[TokenPiece]) -> list[dict[str, Any]] | None:
    """Return OpenAI's description of the tokens' probabilities; None if they are not requested."""
    if answer.request.logprobs is None:
        return None

    def describe(token: int, logprob: float) -> dict[str, Any]:
        text = answer.codec.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return [
        {
            **describe(piece.token, piece.logprobs.chosen),
            "top_logprobs": [describe(token, value) for token, value in piece.logprobs.top],
        }
        for piece in pieces
        if piece.token is not None and piece.logprobs is not None
    ]


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


def _timing(timing: Timing) -> bytes:
    prefill = timing.first_token - timing.queue
    return b"queue;dur=%.3f, ttft;dur=%.3f, prefill;dur=%.3f" % (
        timing.queue * 1e3,
        timing.first_token * 1e3,
        prefill * 1e3,
    )


def _json(document: Mapping[str, Any]) -> Response:
    return make_response(200, _JSON, orjson.dumps(document))


def _openai_error(response: Response, param: str | None) -> Response:
    """Return a rejection in the form of OpenAI's API."""
    found = orjson.loads(response.body)
    message = found["error"] if not found.get("hint") else f"{found['error']}. {found['hint']}"
    document = {
        "message": message,
        "type": _TYPES.get(response.status, "server_error"),
        "param": param,
        "code": found["code"],
    }
    named = (b"content-type", b"content-length")
    extra = [header for header in response.headers if header[0] not in named]
    return make_response(response.status, _JSON, orjson.dumps({"error": document}), extra)


def _require_plain(pending: PendingRequest) -> None:
    if pending.coding != IDENTITY:
        raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "a compressed body is not accepted here")


def _require(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise MethodError(allowed)
