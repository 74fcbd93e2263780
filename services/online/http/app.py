"""The V2 protocol over HTTP, except infer requests, which `connection.protocol` answers.

A plain ASGI application in front of BentoML's middleware. Errors are
`{"error": sentence, "code": stable name}` and show nothing of the server's inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.http.calls import HttpCall, Message, Receive, Send
from mlctl.services.online.http.inference import InferHandler, PendingRequest
from mlctl.services.online.http.responses import Response, json_response
from mlctl.services.online.models.extensions import unserved_path
from mlctl.services.online.models.metadata import (
    is_ready,
    metadata,
    only_ready,
    reject_change,
    repository_index,
    server_metadata,
)
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.statistics import model_config, model_statistics

_INFER = "infer"
# Other servers of the protocol use the third name.
_INFER_VERBS = frozenset({_INFER, "infer_stream", "generate_stream"})
# The number of parts of /v2/models/NAME; longer paths name an operation of the model.
_NAMED = 3
_MODEL_PATHS: tuple[list[str], ...] = ([], ["ready"], ["config"], ["stats"])


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
        call = HttpCall(scope, receive, send)
        parts = call.path.strip("/").split("/")
        if parts[1:2] == ["models"] and len(parts) > _NAMED and parts[-1] in _INFER_VERBS:
            inference = self._inferences.get(parts[2], self._inference)
            await call.serve(inference, partial(self._infer, call, inference, parts))
        elif parts[1:2] == ["repository"]:
            await call.answer(self._repository(call, parts))
        else:
            await call.answer(self._described(call, parts))

    async def _infer(self, call: HttpCall, inference: InferHandler, parts: list[str]) -> None:
        """Answer a request for a streamed answer, and reject what the HTTP protocol leaves."""
        call.require("POST")
        require_infer_path(self._serving, parts)
        if parts[-1] == _INFER:
            raise no_such_path(parts)
        with PendingRequest(inference.inflight) as pending:
            inference.read_headers(pending, call.headers)
            body = await call.read(inference.check_size, pending, inference.seconds)
            streamed = await inference.submit_stream(pending, body)
            with call.heartbeats():
                async with aclosing(call.pieces(streamed.parts)) as parts_of_answer:
                    async for part in parts_of_answer:
                        await call.write(b"data: %b\n\n" % inference.encode_part(streamed, part))
            end = b"event: end\ndata: %b\n\n" % inference.encode_end(streamed, call.client)
            await call.write(end, more=False)
        inference.report(call.record)

    async def _described(self, call: HttpCall, parts: list[str]) -> Response:
        status, document = self._describe(parts)
        call.require("GET", "HEAD")
        return json_response(status, document)

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
                return self._describe_model(parts, name, rest)
        raise no_such_path(parts)

    def _describe_model(
        self, parts: list[str], name: str, rest: list[str]
    ) -> tuple[int, Mapping[str, Any]]:
        version = ""
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        if rest not in _MODEL_PATHS:
            self._serving.find(name)
            raise no_such_path(parts)
        match rest:
            case ["ready"]:
                return _readiness(is_ready(self._serving, name, version), name=name)
            case ["config"]:
                return 200, model_config(self._serving.find(name, version))
            case ["stats"]:
                return 200, model_statistics(self._serving.find(name, version))
        return 200, metadata(self._serving, name, version)

    async def _repository(self, call: HttpCall, parts: list[str]) -> Response:
        call.require("POST")
        match parts[2:]:
            case ["index"]:
                limits = self._inference
                with Hold(self._serving.inflight) as hold:
                    body = await call.read(limits.check_size, hold, limits.seconds)
                return json_response(200, repository_index(self._serving, ready=only_ready(body)))
            case ["models", _, "load" | "unload" as verb]:
                reject_change(verb)
        raise no_such_path(parts)


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
            raise no_such_path(parts)


def _readiness(ready: bool, **fields: object) -> tuple[int, Mapping[str, Any]]:
    return (200 if ready else 503), {**fields, "ready": ready}


def no_such_path(parts: Sequence[str]) -> MlctlError:
    """Return the error of a path, split into `parts`, that the server does not have."""
    return unserved_path(parts) or MlctlError(
        ErrorCode.NOT_FOUND, "the V2 protocol has no such path"
    )
