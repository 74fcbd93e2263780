"""Whatever becomes of a request, nothing of it is held afterwards: bytes, connections, work."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.listening import Listening, listening, until
from tests.support.streams import counting_row, make_stream_bundle

PIECES = 60  # of an answer: more than are made ahead of its reader


def message(verb: str, *, name: str = "tiny", headers: str = "", chunked: bool = False) -> bytes:
    """A request for an answer of many pieces, over HTTP."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": counting_row(PIECES)}
    body = json.dumps({"inputs": [tensor]}).encode()
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = f"POST /v2/models/{name}/{verb} HTTP/1.1\r\nHost: t\r\n{framing}\r\n{headers}\r\n"
    return head.encode() + body


WHOLE = {
    "http": message("infer"),
    "repeated": message("infer"),  # on a connection that had its answer twice before
    "escaped": message("infer", name="t%69ny"),
    "many": message("infer") * 3,
    "chunked": message("infer", chunked=True),
    "expect": message("infer", headers="Expect: 100-continue\r\n"),
    "stream": message("infer_stream"),
    "pipelined": message("infer_stream") + message("infer") + message("infer_stream"),
    "refused": message("infer", headers="Content-Type: text/html\r\n"),
    "unknown": message("infer", name="other"),
    "too large": message("infer").replace(b"Length: ", b"Length: 9"),
}
HTTP = st.tuples(
    st.sampled_from(sorted(WHOLE)),
    st.floats(0.3, 1.0),  # how much of it is sent
    st.sampled_from(["close", "reset", "half", "wait"]),
    st.sampled_from([0, 1, 300]),  # bytes that are read before that
)
GRPC = st.tuples(
    st.sampled_from(["ModelInfer", "ModelStreamInfer"]),
    st.sampled_from(["whole", "cancel", "deadline", "leave"]),
    st.booleans(),  # whether the message is one
)


@dataclass(slots=True)
class Bench:
    runner: asyncio.Runner
    host: ServedModel
    grpc: GrpcServer

    def run(self, over_http: list[Any], over_grpc: list[Any]) -> None:
        async def main() -> None:
            inference = InferHandler(self.host)
            app = V2App(self.host, inference)
            async with asyncio.timeout(60), listening(app, infer_protocol(inference)) as server:
                asked = [ask_http(server, *one) for one in over_http]
                called = [self.call(*one) for one in over_grpc]
                await asyncio.gather(*asked, *called)
                await until(lambda: not server.state.connections)
            await until(lambda: self.host.inflight.used == 0)
            executor = self.host._batching
            assert executor is not None
            await until(lambda: not executor.has_open)

        self.runner.run(main())

    async def call(self, method: str, ending: str, good: bool) -> None:
        content = call_message() if good else b"\xff\xff"
        target, local = f"127.0.0.1:{self.grpc.port}", "grpc.use_local_subchannel_pool"
        seconds = 0.02 if ending == "deadline" else 30.0
        async with grpc.aio.insecure_channel(target, [(local, 1)]) as channel:
            made: Any = channel.stream_stream(f"/{SERVICE}/{method}")
            with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                one = made(timeout=seconds)
                await one.write(content)
                if method == "ModelStreamInfer":
                    await one.read()
                if ending == "whole":
                    await one.done_writing()
                    while await one.read() is not grpc.aio.EOF:
                        continue
                elif ending == "cancel":
                    one.cancel()
                elif ending == "deadline":
                    await one.code()


def call_message() -> bytes:
    request = methods()["ModelInfer"].request(model_name="tiny")
    row = request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    row.contents.fp32_contents.extend(counting_row(PIECES))
    found: bytes = request.SerializeToString()
    return found


async def ask_http(server: Listening, kind: str, share: float, ending: str, read: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    content = WHOLE[kind]
    if kind == "repeated":
        for _ in range(2):
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
    writer.write(content[: round(len(content) * share)])
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        if read:
            async with asyncio.timeout(0.05):
                await reader.readexactly(read)
        if ending == "half":
            writer.write_eof()
        if ending in ("half", "wait"):
            async with asyncio.timeout(0.05):
                await reader.read()
    if ending == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bundle = make_stream_bundle(tmp_path_factory.mktemp("budget") / "bundle")
    with asyncio.Runner() as runner:
        host = ServedModel(
            bundle, ServerSettings(max_body_bytes=5000), registry=CollectorRegistry()
        )

        async def start() -> GrpcServer:
            await host.start()
            server = GrpcServer(host, "127.0.0.1", 0)
            await server.start()
            return server

        made = Bench(runner, host, runner.run(start()))
        yield made

        async def stop() -> None:
            await made.grpc.stop(1)
            await host.stop()

        runner.run(stop())


@settings(max_examples=60)
@given(st.lists(HTTP, max_size=8), st.lists(GRPC, max_size=3))
def test_budget__requests_end_in_any_way__nothing_is_held(
    bench: Bench, over_http: list[Any], over_grpc: list[Any]
) -> None:
    bench.run(over_http, over_grpc)
