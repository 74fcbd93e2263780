"""A small real HTTP server that stands in for a served Bento in the rollout tests.

It answers what the rollout asks of a Bento (/readyz, /v2/health/ready, /v2/models/NAME with
its digest, infer), and infer requests and V2 gRPC's ModelInfer over HTTP/2 when MLCTL_GRPC_PORT is
set, with the product's connections. Its behaviour is in the tag, as URL query parameters:
`NAME:DIGEST12?delay=0.05&fail=0.3&full=0.1&limit=0.1&slow=0.5&refuse=1&ready=never&trace=1`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import grpc
import uvicorn

from mlctl.services.access import RateLimitError
from mlctl.services.online.batching.admission import Inflight
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler, stopping
from mlctl.services.online.grpc.http2.connection import Connection, Times
from mlctl.services.online.grpc.http2.head import OK_TRAILERS, CallHead
from mlctl.services.online.grpc.http2.hpack import literal
from mlctl.services.online.grpc.http2.http2_call import Http2Call, OpenInferStream
from mlctl.services.online.grpc.http2.messages import frame
from mlctl.services.online.grpc.http2.outbox import Parking
from mlctl.services.online.http.responses import error_response

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
_PATIENCE = 5  # seconds
_GRPC = {
    500: grpc.StatusCode.INTERNAL,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the server answers: `delay` seconds for a share `slow`, errors for a share `fail`.

    A share `limit` of the other requests is beyond their client's limit. A share `full` of the rest
    gets 429, as from a language model with a full queue, and a share `refuse` of those left 404.
    While the file `fault` exists every request fails.
    """

    name: str
    digest: str
    delay: float = 0.0
    slow: float = 1.0
    fail: float = 0.0
    full: float = 0.0
    limit: float = 0.0
    refuse: float = 0.0
    ready: str = "yes"
    live: str = "yes"
    trace: bool = False
    fault: str = ""

    @classmethod
    def parse(cls, tag: str) -> Behaviour:
        plain, _, query = tag.partition("?")
        name, _, short = plain.partition(":")
        options = dict(parse_qsl(query))
        return cls(
            name=name,
            digest=short.ljust(64, "0"),
            delay=float(options.get("delay", 0.0)),
            slow=float(options.get("slow", 1.0)),
            fail=float(options.get("fail", 0.0)),
            full=float(options.get("full", 0.0)),
            limit=float(options.get("limit", 0.0)),
            refuse=float(options.get("refuse", 0.0)),
            ready=options.get("ready", "yes"),
            live=options.get("live", "yes"),
            trace="trace" in options,
            fault=options.get("fault", ""),
        )

    @property
    def patience(self) -> int:
        """Seconds that it gives its requests when it is told to stop: none if they hang."""
        return _PATIENCE if self.delay < _PATIENCE else 0

    def tell(self, headers: Iterable[tuple[bytes | str, bytes | str]]) -> None:
        """Print a request's id, whether it is a copy, and what it shows, if told to trace."""
        found = {_text(name): _text(value) for name, value in headers}
        if self.trace and "x-request-id" in found:
            kind = "copy" if "x-mlctl-copy" in found else "request"
            print(kind, found["x-request-id"], flush=True)
        if self.trace and "authorization" in found:
            print("authorization", found["authorization"], flush=True)

    def _is_faulty(self) -> bool:
        return self.fault != "" and Path(self.fault).exists()

    async def act(self) -> int:
        """Wait as told; the HTTP status of this request. RATE_LIMIT_EXCEEDED beyond a limit."""
        if self.delay and random.random() < self.slow:
            await asyncio.sleep(self.delay)
        if random.random() < self.fail or self._is_faulty():
            return 500
        if random.random() < self.limit:
            raise RateLimitError("test", 1.0, 1.0)
        if random.random() < self.full:
            return 429
        return 404 if random.random() < self.refuse else 200


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class FakeApp:
    """The ASGI application."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        await self._drain(receive)
        status, headers, body = await self.respond(scope["path"], scope["headers"])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def respond(
        self, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The status, the headers and the body of the response to a request."""
        self._behaviour.tell(headers)
        try:
            status, body = await self._answer(path)
        except RateLimitError as error:
            return error_response(error)
        length = b"%d" % len(body)
        return status, [(b"content-type", b"application/json"), (b"content-length", length)], body

    async def _answer(self, path: str) -> tuple[int, bytes]:
        behaviour = self._behaviour
        if path == "/v2/health/live":
            return (503 if behaviour.live == "never" else 200), b"{}"
        if path in ("/readyz", "/v2/health/ready"):
            return (503 if behaviour.ready == "never" else 200), b"{}"
        if path == f"/v2/models/{behaviour.name}":
            body = f'{{"name": "{behaviour.name}", "versions": ["{behaviour.digest}"]}}'
            return 200, body.encode()
        if path.endswith(("/infer", "/infer_stream")):
            status = await behaviour.act()
            return status, f'{{"model_version": "{behaviour.digest}"}}'.encode()
        return 404, b"{}"

    @staticmethod
    async def _drain(receive: Receive) -> None:
        while (await receive()).get("more_body"):
            continue

    @staticmethod
    async def _lifespan(receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


class FakeStream(OpenInferStream):
    """One infer request over HTTP/2."""

    def __init__(self, connection: Connection, stream: int, head: CallHead, app: FakeApp) -> None:
        self.stream = stream
        self._connection, self._head, self._app = connection, head, app
        self._task: asyncio.Task[None] | None = None

    def feed(self, data: bytes, size: int, *, ended: bool) -> None:  # noqa: ARG002 - not read
        if not ended:
            self._connection.consumed(self.stream, size)

    def end(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._respond())

    def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def stop(self, reason: Any) -> None:  # noqa: ARG002 - the connection ends
        self.leave()

    async def _respond(self) -> None:
        path = self._head.path.partition("?")[0]
        status, headers, body = await self._app.respond(path, self._head.fields)
        fields = [(b":status", b"%d" % status), *headers]
        block = b"".join([literal(name, value) for name, value in fields])
        self._connection.outbox.respond(
            self.stream, block, body, reset_unfinished=False, seconds=60.0
        )
        self._connection.over(self.stream)


class FakeHttp2:
    """The listener of gRPC and of infer requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._app = FakeApp(behaviour)
        self._room = Inflight(1 << 30)
        self._connections: set[Connection] = set()

    async def start(self, host: str, port: int) -> None:
        parking = Parking()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(
                self._open, self._connections, 1000, Times(), parking, lambda *_: False
            ),
            host,
            port,
        )

    async def stop(self, seconds: float) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.drain()
        gone = [connection.gone for connection in self._connections]
        if gone:
            await asyncio.wait(gone, timeout=seconds)
        for connection in list(self._connections):
            connection.stop(stopping())

    def _open(
        self, connection: Connection, stream: int, head: CallHead, data: bytes | None
    ) -> GrpcCall | Http2Call | None:
        call: GrpcCall | FakeStream
        if head.is_grpc:
            call = GrpcCall(
                connection, stream, head, limit=1 << 20, inflight=self._room, room=self._room,
                seconds=60.0, ended=data is not None, on_reject=lambda *_: None,
            )  # fmt: skip
            call.begin(MethodHandler(self._infer, bytes))
        else:
            call = FakeStream(connection, stream, head, self._app)
        if data is not None:
            call.feed(data, len(data), ended=True)
            call.end()
        return call

    async def _infer(self, message: bytes, call: GrpcCall) -> None:
        self._behaviour.tell(call.head.fields)
        if status := _GRPC.get(await self._behaviour.act()):
            call.reject_with(status, "told to fail")
        else:
            call._send(frame(message))
            call._close((*OK_TRAILERS, (b"digest", self._behaviour.digest.encode())))


async def serve(behaviour: Behaviour, host: str, port: int, grpc_port: int | None) -> None:
    """Serve until SIGTERM."""
    http2 = FakeHttp2(behaviour)
    if grpc_port is not None:
        await http2.start(host, grpc_port)
    config = uvicorn.Config(
        FakeApp(behaviour),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=behaviour.patience,
    )
    await uvicorn.Server(config).serve()
    if grpc_port is not None:
        await http2.stop(behaviour.patience)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tag")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    behaviour = Behaviour.parse(arguments.tag)
    print(f"fake bento {arguments.tag} starts", flush=True)
    if behaviour.ready == "crash":
        sys.exit("fake bento was told to crash")
    grpc_port = os.environ.get("MLCTL_GRPC_PORT")
    asyncio.run(
        serve(behaviour, arguments.host, arguments.port, int(grpc_port) if grpc_port else None)
    )


if __name__ == "__main__":
    main()
