"""What an answered request costs, in calls and bytes: the same on every machine and every day.

The whole way from a connection's bytes to its answer's, with everything on that is on by
default, but no socket. Time would depend on the neighbours; the calls that the interpreter
makes do not, and most of a small request's time is in them. Lower a bound that has become
loose; who raises one says why.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import uvloop
from prometheus_client import CollectorRegistry
from uvicorn.config import Config
from uvicorn.server import ServerState

from bundle.verify import VerifiedBundle
from services.online.http.app import V2App
from services.online.http.connection.protocol import infer_protocol
from services.online.http.inference import InferHandler
from services.online.models.served_model import ServedModel
from services.online.settings import ServerSettings
from tests.support import wires
from tests.support.bundles import make_bundle
from tests.support.clock import ManualClock
from tests.support.wires import Wire

TARGET = "/v2/models/tiny/infer"
FEATURES = 64
ROW = np.linspace(0, 1, FEATURES, dtype=np.float32)[None]
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, FEATURES]}
# The calls that are not the server's: this file's, and the waiting of the loop's side.
OTHERS = (__file__, wires.__file__, asyncio.tasks.__file__)
TURNS = 8


def post(body: bytes, **headers: str) -> bytes:
    """A request with `body`; `_` in a header's name is a dash."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = [f"POST {TARGET} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def binary() -> bytes:
    """The row as binary data, and so the answer."""
    tensor = {**TENSOR, "parameters": {"binary_data_size": ROW.nbytes}}
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    return post(head + ROW.tobytes(), Inference_Header_Content_Length=str(len(head)))


def text() -> bytes:
    """The row as JSON, and so the answer."""
    return post(json.dumps({"inputs": [{**TENSOR, "data": ROW.ravel().tolist()}]}).encode())


class Server:
    """One started host and its connections."""

    def __init__(self, host: ServedModel) -> None:
        inference = InferHandler(host)
        self._protocol = infer_protocol(inference)
        app: Any = V2App(host, inference)
        self._config = Config(app, http=self._protocol, lifespan="off", log_config=None)
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]

    def connect(self, count: int) -> list[tuple[Any, Wire]]:
        """So many connections."""
        found = []
        for _ in range(count):
            protocol = self._protocol(config=self._config, server_state=self._state, app_state={})
            wire = Wire()
            protocol.connection_made(wire)
            found.append((protocol, wire))
        return found


async def ask(connections: list[tuple[Any, Wire]], request: bytes) -> None:
    """Ask once on each of `connections` in one turn of the loop, and wait for every answer."""
    for protocol, _ in connections:
        protocol.data_received(request)
    async with asyncio.timeout(60):
        while not all(wire.sent for _, wire in connections):  # noqa: ASYNC110 - turns count
            await asyncio.sleep(0)
    for _, wire in connections:
        assert wire.sent.pop().startswith(b"HTTP/1.1 200 ")
        assert not wire.sent
        assert not wire.closed


Use = Callable[[Server], Awaitable[float]]
Measure = Callable[[Use], float]


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_bundle(tmp_path_factory.mktemp("wide") / "bundle", features=FEATURES)


@pytest.fixture
def measure(wide_bundle: VerifiedBundle) -> Measure:
    """Calls a function with a server, on the event loop that servers run on."""

    def run(use: Use) -> float:
        async def main() -> float:
            # By this clock every batch takes no time, so that what is learned is the same, too.
            host = ServedModel(
                wide_bundle,
                ServerSettings(),
                clock=ManualClock(),
                registry=CollectorRegistry(),
            )
            await host.start()
            try:
                return await use(Server(host))
            finally:
                await host.stop()

        return uvloop.run(main())

    return run


def calls_of(request: bytes, count: int, parts: tuple[str, ...] = ("",)) -> Use:
    """The calls that each of `count` requests costs which come at the same time.

    Only those by files with one of `parts` in their path.
    """

    async def use(server: Server) -> float:
        connections = server.connect(count)
        for _ in range(3):
            await ask(connections, request)
        calls = 0

        def note(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            file = frame.f_code.co_filename
            counts = event in ("call", "c_call") and file not in OTHERS
            calls += counts and any(part in file for part in parts)

        sys.setprofile(note)
        try:
            for _ in range(TURNS):
                await ask(connections, request)
        finally:
            sys.setprofile(None)
        return calls / TURNS / count

    return use


@pytest.mark.parametrize(
    ("request_of", "count", "bound"),
    [(binary, 1, 289), (binary, 64, 152), (text, 1, 300), (text, 64, 163)],
)
def test_a_request_costs_no_more_calls(
    measure: Measure, request_of: Callable[[], bytes], count: int, bound: float
) -> None:
    first, second = (measure(calls_of(request_of(), count)) for _ in range(2))
    # Else no bound would mean anything. Which deadline is the first is the real clock's say.
    assert first == pytest.approx(second, abs=0.5)
    assert first <= bound


async def retained(server: Server) -> float:
    """The bytes that each answered request leaves behind."""
    connections = server.connect(8)
    count, request = 160, binary()  # the times of 1,024 requests are kept at most

    async def least() -> int:
        """The low-water mark: what is kept up to a bound comes and goes."""
        found = []
        for _ in range(count):
            await ask(connections, request)
            gc.collect()
            found.append(tracemalloc.get_traced_memory()[0])
        return min(found)

    tracemalloc.start()
    try:
        for _ in range(2):
            await least()  # fills caches
        before = await least()
        after = await least()
    finally:
        tracemalloc.stop()
    return (after - before) / count / len(connections)


def test_an_answered_request_leaves_nothing_behind(measure: Measure) -> None:
    # Anything that is kept for each request is a pointer at least.
    assert measure(retained) < 8


async def peak(server: Server) -> float:
    """The most bytes that one request has at a time."""
    connections = server.connect(1)
    for _ in range(3):
        await ask(connections, binary())
    request, most = binary(), []
    tracemalloc.start()
    try:
        for _ in range(TURNS):
            await ask(connections, request)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            await ask(connections, request)
            most.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return min(most)


def test_a_request_takes_little_memory(measure: Measure) -> None:
    assert measure(peak) < 12 << 10


def test_what_is_off_costs_a_look(measure: Measure) -> None:
    """Neither a token nor a log, a trace or a sample is asked for: four calls in all."""
    parts = (f"{os.sep}services{os.sep}observe{os.sep}", f"{os.sep}services{os.sep}secure{os.sep}")
    assert measure(calls_of(binary(), 8, parts)) <= 4
