"""The infer path answers requests in any pieces as a stock uvicorn does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.calls import Message, Receive, Send
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.fields import fields_of
from mlctl.services.online.http.inference import InferHandler, PendingRequest
from mlctl.services.online.http.responses import Response, make_response
from tests.services.online.http.connection.conftest import (
    BODY,
    INFER,
    Bench,
    Reply,
    read_reply,
    request,
)
from tests.support.listening import Listening, listening

# These tell of the moment, and are each server's own.
VARYING = {b"server-timing", b"x-request-id"}


def chunked(sizes: list[int]) -> bytes:
    """A request whose body comes in chunks of `sizes` bytes, and then the rest."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts, rest = [head.encode()], BODY
    for size in [*sizes, len(BODY)]:
        part, rest = rest[:size], rest[size:]
        if part:
            parts.append(b"%x\r\n%b\r\n" % (len(part), part))
    return b"".join([*parts, b"0\r\n\r\n"])


REQUESTS = st.one_of(
    st.sampled_from(
        [
            request(),
            request(body=b"{"),
            request(body=b""),
            request("/v2/models/other/infer"),
            request(headers="Content-Type: text/csv\r\n"),
            request(headers="Inference-Header-Content-Length: x\r\n"),
            request(headers="X-Request-Id: given\r\n"),
            request(INFER + "?query=1"),
            request("/v2/health/live"),
            b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n",
            b"GET /v2/models/tiny HTTP/1.1\r\nHost: test\r\n\r\n",
            b"\r\n" + request(),
        ]
    ),
    st.lists(st.integers(1, 40), max_size=4).map(chunked),
)
LAST = request(headers="Connection: close\r\n")


class Waiting(PendingRequest):
    """A request whose answer is a future."""

    def __init__(self, inference: InferHandler) -> None:
        super().__init__(inference.inflight)
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def set_result(self, answer: Answer, /) -> None:
        self.future.set_result(answer)

    def set_exception(self, error: BaseException, /) -> None:
        self.future.set_exception(error)

    def render(
        self,
        timing: bytes,
        body: bytes,
        header_length: int | None,
        extra: Sequence[tuple[bytes, bytes]],
    ) -> Response:
        headers = [(b"server-timing", timing), (b"x-request-id", self.request_id), *extra]
        if header_length is None:
            return make_response(200, b"application/json", body, headers)
        headers.append((b"inference-header-content-length", b"%d" % header_length))
        return make_response(200, b"application/octet-stream", body, headers)


class Reference:
    """`app`, and infer requests of any spelling in plain ASGI."""

    def __init__(self, bench: Bench, app: V2App) -> None:
        self._inference = bench.inference
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST" or scope["path"] != INFER:
            await self._app(scope, receive, send)
            return
        inference, headers = self._inference, fields_of(scope["headers"])
        request_id = inference.request_id(headers)
        try:
            pending = Waiting(inference)
            inference.begin(pending, headers)
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message.get("more_body", False)
            inference.submit(pending, body, inference.seconds)
            answer = await pending.future
            response = inference.respond(pending, answer)
        except MlctlError as error:
            response = inference.reject(error, request_id)
        start = {"status": response.status, "headers": response.headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": response.body})


async def answers(server: Listening, pieces: list[bytes]) -> list[Reply]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for piece in pieces:
            writer.write(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        replies = []
        while not reader.at_eof():
            reply = await read_reply(reader)
            kept = {n: v for n, v in reply.headers.items() if n not in VARYING}
            replies.append(
                Reply(
                    reply.status, {**kept, b"names": repr(len(reply.headers)).encode()}, reply.body
                )
            )
            if reply.headers.get(b"connection") == b"close":
                break
        assert await reader.read() == b""
        return replies
    finally:
        writer.transport.abort()


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(content) + 1) for place in places}), len(content)]
    return [content[start:end] for start, end in itertools.pairwise(edges) if start < end]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(REQUESTS, max_size=6),
    places=st.lists(st.integers(0, 4000), max_size=12),
    single=st.booleans(),
)
def test_framing__any_requests_in_any_parts__equals_stock_uvicorn(
    bench: Bench, requests: list[bytes], places: list[int], single: bool
) -> None:
    content = b"".join([*requests, LAST])
    pieces = [bytes([byte]) for byte in content] if single else cut(content, places)
    app = V2App(bench.host, bench.inference)
    reference = Reference(bench, app)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            listening(reference, HttpToolsProtocol) as stock,
            listening(app, infer_protocol(bench.inference)) as ours,
        ):
            expected, found = await answers(stock, pieces), await answers(ours, pieces)
            assert len(expected) == len(requests) + 1
            assert found == expected

    bench.runner.run(main())
