"""Generated text over HTTP: OpenAI's /v1 endpoints, and `generate` and `generate_stream` of V2.

Streamed answers are server-sent events. A client that disconnects frees its place in the engine for
the next step.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import orjson

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.engine import GenerationRequest, TokenPiece
from mlctl.services.generate.requests import (
    ChatRequest,
    CompletionRequest,
    OpenAiRequest,
    ParameterError,
    V2Request,
    about,
    parse_request,
)
from mlctl.services.generate.text import ContextLengthError
from mlctl.services.online.batching.admission import QueueFullError, deadline_exceeded
from mlctl.services.online.batching.generation import Timing
from mlctl.services.online.http.calls import HttpCall, Message, Receive, Send
from mlctl.services.online.http.inference import InferHandler, PendingRequest
from mlctl.services.online.http.openai_errors import BUSY, is_v1, openai_error
from mlctl.services.online.http.responses import Response, make_response
from mlctl.services.online.models.generator import ServedGenerator
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.observability.calls import HTTP, RequestRecord
from mlctl.services.protocol.compression import IDENTITY
from mlctl.services.protocol.wire import shown

_V2_VERBS = frozenset({"generate", "generate_stream"})
_DONE = b"data: [DONE]\n\n"
_JSON = b"application/json"
# OpenAI's status and code for a prompt that is too long, by which clients know it.
_INVALID, _TOO_LONG = 400, "context_length_exceeded"
# A body of so many bytes is parsed in a millisecond.
_SHORT_BODY = 1 << 16
_Parsed = TypeVar("_Parsed", bound=OpenAiRequest | V2Request)


class CompletionAnswer:
    """An answer of /v1/completions: its documents, as a whole or as events."""

    def __init__(
        self,
        model: ServedGenerator,
        request: GenerationRequest,
        *,
        stream: bool,
        counts_tokens: bool = False,
    ) -> None:
        """`counts_tokens`: the last event has the numbers of tokens."""
        self.model = model
        self.request = request
        self.stream = stream
        self.tokens = 0
        self._counts_tokens = counts_tokens
        self._head = self._make_head()

    def whole(self, pieces: Sequence[TokenPiece]) -> dict[str, Any]:
        """Return the document of a whole answer."""
        return {**self._head, "choices": [self._choice(pieces)], "usage": self._usage()}

    def event(self, piece: TokenPiece) -> dict[str, Any] | None:
        """Return the document of an event for the next `piece`; None if there is nothing to say."""
        if piece.text or piece.finish or piece.logprobs:
            return {**self._head, "choices": [self._choice([piece])]}
        return None

    def end(self) -> dict[str, Any] | None:
        """Return the document of the event after the last piece, if there is one."""
        if self._counts_tokens:
            return {**self._head, "choices": [], "usage": self._usage()}
        return None

    def _make_head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model.name,
        }

    def _choice(self, pieces: Sequence[TokenPiece]) -> dict[str, Any]:
        tokens = None if self.request.logprobs is None else self._logprobs(pieces)
        return {
            "index": 0,
            **self._content(_text(pieces)),
            "logprobs": None if tokens is None else self._listed(tokens),
            "finish_reason": pieces[-1].finish,
        }

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _listed(self, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the probabilities of `tokens` in the form of this endpoint."""
        offsets = [each.pop("offset") for each in tokens]
        return {
            "tokens": [each["token"] for each in tokens],
            "token_logprobs": [each["logprob"] for each in tokens],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in reversed(each["top_logprobs"])}
                for each in tokens
            ],
            "text_offset": offsets,
        }

    def _logprobs(self, pieces: Sequence[TokenPiece]) -> list[dict[str, Any]]:
        """Return OpenAI's description of the tokens' probabilities, each with its `offset`."""

        def describe(token: int, logprob: float) -> dict[str, Any]:
            text, content = self.model.codec.token_text(token)
            return {"token": text, "logprob": logprob, "bytes": list(content)}

        return [
            {
                **describe(piece.token, piece.logprobs.chosen),
                "top_logprobs": [describe(token, value) for token, value in piece.logprobs.top],
                "offset": piece.offset,
            }
            for piece in pieces
            if piece.token is not None and piece.logprobs is not None
        ]

    def _usage(self) -> dict[str, int]:
        prompt = len(self.request.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.tokens,
            "total_tokens": prompt + self.tokens,
        }


class ChatAnswer(CompletionAnswer):
    """An answer of /v1/chat/completions."""

    _begun = False

    def _make_head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        head = super()._make_head()
        return {**head, "id": f"chat{head['id']}", "object": kind}

    def _content(self, text: str) -> dict[str, Any]:
        message = {"content": text} if self._begun else {"role": "assistant", "content": text}
        self._begun = True
        return {"delta" if self.stream else "message": message}

    def _listed(self, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        for each in tokens:
            del each["offset"]
        return {"content": tokens, "refusal": None}


class V2Answer(CompletionAnswer):
    """An answer of the V2 `generate` calls."""

    def whole(self, pieces: Sequence[TokenPiece]) -> dict[str, Any]:
        return {**self._head, "text_output": _text(pieces)}

    def event(self, piece: TokenPiece) -> dict[str, Any] | None:
        return {**self._head, "text_output": piece.text} if piece.text else None

    def _make_head(self) -> dict[str, Any]:
        return {"model_name": self.model.name, "model_version": self.model.digest}

    def named(self, request_id: str | None) -> Self:
        """Give the answer the id of its request."""
        if request_id is not None:
            self._head = {"id": request_id, **self._head}
        return self


class GenerateApp:
    """The ASGI application of the language models of a server."""

    def __init__(self, serving: Serving, *handlers: InferHandler) -> None:
        self._serving = serving
        self._handlers = {each.name: each for each in handlers}
        self._default = handlers[0]
        self.models = {
            served.name: served for served in serving.models if isinstance(served, ServedGenerator)
        }

    def answers(self, path: str) -> bool:
        """Return whether this application answers `path`."""
        return is_v1(path) or self._named(path) in self.models

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        call.error_event = b"data: %b\n\n"
        handler = self._handlers.get(self._named(call.path), self._default)

        def reject_openai(
            error: BaseException, request_id: bytes, client: str, record: RequestRecord | None
        ) -> Response:
            status, code, param = None, None, getattr(error, "param", None)
            if isinstance(error, QueueFullError):
                status = BUSY
            elif isinstance(error, ContextLengthError):
                chat = call.path.rstrip("/").endswith("/chat/completions")
                status, code = _INVALID, _TOO_LONG
                param = (ChatRequest if chat else CompletionRequest).prompt_field
            elif isinstance(error, MlctlError) and error.code is ErrorCode.MODEL_NOT_FOUND:
                param = "model"
            response = handler.reject(error, request_id, client, record, status)
            return openai_error(response, status, param, code)

        work = partial(self._answer, call, handler)
        await call.serve(handler, work, reject_openai if is_v1(call.path) else None)

    async def _answer(self, call: HttpCall, handler: InferHandler) -> None:
        path = call.path.rstrip("/")
        if path == "/v1/models" or path.startswith("/v1/models/"):
            call.require("GET", "HEAD")
            await call.respond(self._list(path.removeprefix("/v1/models").strip("/")))
            return
        read = self._reader(path)
        call.require("POST")
        with PendingRequest(handler.inflight) as pending:
            handler.read_headers(pending, call.headers)
            if pending.coding != IDENTITY:
                raise MlctlError(
                    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
                    "a compressed body is not accepted here",
                    "Send it without Content-Encoding.",
                )
            body = await call.read(handler.check_size, pending, handler.seconds)
            try:
                async with asyncio.timeout_at(call.arrived + handler.seconds):
                    answer = await call.unless_gone(read(body, call.origin))
            except TimeoutError:
                raise deadline_exceeded() from None
            await _send(answer, call)
        answer.model.count(HTTP, None, call.client)
        handler.report(call.record)

    def _named(self, path: str) -> str:
        """Return the model that a path of the V2 `generate` calls names, else an empty text."""
        parts = path.strip("/").split("/")
        ours = parts[:2] == ["v2", "models"] and len(parts) > 3 and parts[-1] in _V2_VERBS
        return parts[2] if ours else ""

    def _reader(self, path: str) -> Callable[[bytes, str], Coroutine[Any, Any, CompletionAnswer]]:
        """Return what reads the body of a request to `path`; NOT_FOUND if there is none."""
        match path.strip("/").split("/"):
            case ["v1", "completions"]:
                return partial(self._openai, CompletionRequest, CompletionAnswer)
            case ["v1", "chat", "completions"]:
                return partial(self._openai, ChatRequest, ChatAnswer)
            case ["v2", "models", name, verb] if verb in _V2_VERBS:
                return partial(_v2, self._find(name), verb)
            case ["v2", "models", name, "versions", version, verb] if verb in _V2_VERBS:
                return partial(_v2, self._find(name, version), verb)
        raise MlctlError(ErrorCode.NOT_FOUND, f"there is no path {shown(path)}")

    async def _openai(
        self, kind: type[OpenAiRequest], answer: type[CompletionAnswer], body: bytes, client: str
    ) -> CompletionAnswer:
        parsed = await _parse(kind, body)
        parsed.check()
        model = self._find(parsed.model)
        request = await _prepare(parsed, model, len(body), client)
        options = parsed.stream_options
        counts = options is not None and options.include_usage
        return answer(model, request, stream=parsed.stream, counts_tokens=counts)

    def _find(self, name: str, version: str = "") -> ServedGenerator:
        served = self._serving.find(name, version)
        if not isinstance(served, ServedGenerator):
            raise ParameterError("model", f"model {name!r} does not generate text")
        if not served.ready and not served.draining:
            raise MlctlError(ErrorCode.UNAVAILABLE, f"model {name!r} is {served.state}")
        return served

    def _list(self, name: str) -> Response:
        entry = {"object": "model", "created": 0, "owned_by": "mlctl"}
        models = {
            each: {"id": each, **entry, "root": served.digest}
            for each, served in self.models.items()
        }
        if name:
            self._find(name)
            return _json(models[name])
        return _json({"object": "list", "data": list(models.values())})


async def _v2(model: ServedGenerator, verb: str, body: bytes, client: str) -> CompletionAnswer:
    parsed = await _parse(V2Request, body)
    stream = verb == "generate_stream"
    if parsed.parameters.stream and not stream:
        raise ParameterError("stream", "generate answers as a whole, call generate_stream")
    request = await _prepare(parsed, model, len(body), client)
    return V2Answer(model, request, stream=stream).named(parsed.id)


async def _parse(kind: type[_Parsed], body: bytes) -> _Parsed:
    if len(body) <= _SHORT_BODY:
        return parse_request(kind, body)
    return await asyncio.to_thread(parse_request, kind, body)


async def _prepare(
    parsed: OpenAiRequest | V2Request, model: ServedGenerator, size: int, client: str
) -> GenerationRequest:
    """Return what the engine is to do; the event loop does not wait for long prompts or grammars.

    `size` is that of the body in bytes.
    """
    work = partial(parsed.generation, model.codec, model.max_tokens)
    request = await model.preparation.run(size, work)
    if (grammar := parsed.grammar()) is None:
        return request
    with about(grammar.param):
        return replace(request, grammar=await model.preparation.compile(grammar, client))


async def _send(answer: CompletionAnswer, call: HttpCall) -> None:
    """Generate and send the answer; GoneError if the client disconnects first."""
    stream = answer.model.generate(answer.request, call.origin)
    async with aclosing(call.pieces(stream)) as pieces:
        if not answer.stream:
            found = [piece async for piece in pieces]
        else:
            with call.heartbeats():
                async for piece in pieces:
                    if (document := answer.event(piece)) is not None:
                        call.event_headers = ((b"server-timing", _timing(stream.timing)),)
                        await call.write(_event(document))
    answer.tokens = stream.sequence.generated
    if answer.stream:
        await call.write(_event(answer.end()) + _DONE, more=False)
    else:
        seconds = stream.last - stream.arrived - stream.timing.first_token
        timing = b"%b, decode;dur=%.3f" % (_timing(stream.timing), seconds * 1e3)
        extra = [(b"server-timing", timing), (b"x-request-id", call.request_id)]
        await call.respond(make_response(200, _JSON, orjson.dumps(answer.whole(found)), extra))


def _text(pieces: Sequence[TokenPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def _event(document: Mapping[str, Any] | None) -> bytes:
    return b"" if document is None else b"data: %b\n\n" % orjson.dumps(document)


def _timing(timing: Timing) -> bytes:
    prefill = timing.first_token - timing.queue
    return b"queue;dur=%.3f, ttft;dur=%.3f, prefill;dur=%.3f" % (
        timing.queue * 1e3,
        timing.first_token * 1e3,
        prefill * 1e3,
    )


def _json(document: Mapping[str, Any]) -> Response:
    return make_response(200, _JSON, orjson.dumps(document))
