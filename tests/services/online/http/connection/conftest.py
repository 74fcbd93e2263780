"""One started host on one event loop, and raw connections to a server of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import InferCycle, infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.support.listening import Listening, listening

INFER = "/v2/models/tiny/infer"
LIMIT = 200_000
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Use = Callable[[Listening], Awaitable[None]]


def request(path: str = INFER, body: bytes = BODY, *, headers: str = "") -> bytes:
    """A POST with a declared length; `headers` are whole lines."""
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it was read."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The next answer that is final."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        status = int(first.split()[1])
        if status != 100:
            break
    headers = {}
    for line in lines:
        name, _, value = line.partition(b": ")
        assert name not in headers
        headers[name] = value
    return Reply(status, headers, await reader.readexactly(int(headers[b"content-length"])))


class Bench:
    """Runs a test on the loop of one host."""

    def __init__(self, bundle: VerifiedBundle, loop_factory: LoopFactory) -> None:
        self.runner = asyncio.Runner(loop_factory=loop_factory)
        self.registry = CollectorRegistry()
        self.settings = ServerSettings(max_body_bytes=LIMIT)
        self.host = ServedModel(bundle, self.settings, registry=self.registry)
        self.inference = InferHandler(self.host)
        self.runner.run(self.host.start())

    def run(self, use: Use, **limits: Any) -> None:
        """Call `use` with a server whose connections have `limits`."""
        base = infer_protocol(self.inference)
        self.serve(type("Limited", (base,), limits) if limits else base, use)

    def serve(self, protocol: Any, use: Use, app: Any = None) -> None:
        """Call `use` with a server that speaks `protocol`, of `app` or the host's application."""
        served = app or V2App(self.host, self.inference)

        async def main() -> None:
            async with asyncio.timeout(60), listening(served, protocol) as server:
                await use(server)

        self.runner.run(main())

    def counted(self, outcome: str) -> float:
        """How many requests ended so."""
        labels = {"model": "tiny", "protocol": "http", "outcome": outcome}
        return self.registry.get_sample_value("mlctl_requests_total", labels) or 0.0


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop])
def module_bench(shared_bundle: VerifiedBundle, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(shared_bundle, request.param)
    yield bench
    bench.runner.run(bench.host.stop())
    bench.runner.close()


@pytest.fixture
def bench(module_bench: Bench) -> Bench:
    return module_bench


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> list[InferCycle]:
    """The requests that the infer path took, as they come."""
    taken: list[InferCycle] = []
    init = InferCycle.__init__

    def counted(self: InferCycle, *given: Any, **options: Any) -> None:
        taken.append(self)
        init(self, *given, **options)

    monkeypatch.setattr(InferCycle, "__init__", counted)
    return taken


@pytest.fixture
def picky(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose model fails for numbers below zero, and with them every batch."""
    batching: Any = bench.host._batching
    run = batching._model.run

    def refuse(inputs: dict[str, np.ndarray]) -> Any:
        if (inputs["x"] < 0).any():
            raise MlctlError(ErrorCode.INTERNAL, "below zero")
        return run(inputs)

    monkeypatch.setattr(batching._model, "run", refuse)
    return bench
