"""Who is known and refused is told what anyone is, and a refusal teaches what may come again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from services.online.batching.admission import QueueFullError, Shut
from services.online.http.connection.protocol import infer_protocol
from services.online.models.served_model import ModelPhase
from services.protocol.priority import Priority
from tests.services.online.http.connection.conftest import BODY, Bench
from tests.services.online.http.connection.lines import Line, post
from tests.services.online.http.connection.test_repeat import ONE, ask, learned

GIVEN = ask([1, 2, 3, 4], headers="X-Request-Id: given\r\n")
JSON = post(BODY)
Fill = Callable[[float], None]


@pytest.fixture
def fill(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Let the queue be full until so many seconds have passed."""

    def full(seconds: float) -> None:
        def offer(*_: Any) -> None:
            raise QueueFullError(8, 8, seconds, wait=seconds)

        monkeypatch.setattr(bench.host._batching._policy, "offer", offer)  # type: ignore[union-attr]

    return full


@pytest.mark.parametrize("content", [ONE, GIVEN, JSON])
def test_it_is_told_what_others_are(bench: Bench, fill: Fill, content: bytes) -> None:
    async def main() -> None:
        line, other = await learned(bench, content), Line(bench, learns=False)
        before = bench.counted("queue_full")
        for seconds in (2.3, 2.3, 7.1):
            fill(seconds)
            for each in (line, other):
                each.protocol.data_received(content)
            assert line.repeated()
            (found,), (expected,) = await line.answer(), await other.answer()
            assert found == expected
            head, _, body = found.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: %d" % (seconds + 1) in head
            assert f"{seconds:.3g} s" in json.loads(body)["error"]
        assert bench.counted("queue_full") == before + 6
        assert bench.host.inflight.used == 0
        for each in (line, other):
            each.end()

    bench.runner.run(main())


def test_its_connection_goes_on(bench: Bench, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        line = await learned(bench)
        fill(1)
        line.protocol.data_received(ONE)
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 503 ")
        monkeypatch.undo()
        line.protocol.data_received(ONE)
        assert line.repeated()
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert not line.wire.closed
        line.end()

    bench.runner.run(main())


def test_one_whose_connection_ends_is_told_so(bench: Bench, fill: Fill) -> None:
    async def main() -> None:
        line = await learned(bench)
        fill(1)
        line.protocol.data_received(ONE)
        line.protocol.shutdown()
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert line.wire.closed
        line.end()

    bench.runner.run(main())


@pytest.mark.parametrize("content", [ONE, GIVEN, JSON])
def test_who_was_only_refused_is_known_by_what_others_asked(
    bench: Bench, fill: Fill, content: bytes
) -> None:
    async def main() -> None:
        base = infer_protocol(bench.inference)
        first = Line(bench, base=base)
        for _ in range(2):
            first.protocol.data_received(content)
            await first.answer()
        fill(1)
        line = Line(bench, base=base)
        for repeated in (False, False, True):  # a connection's first is not looked at
            line.protocol.data_received(content)
            assert line.repeated() is repeated
            (answer,) = await line.answer()
            assert answer.startswith(b"HTTP/1.1 503 ")
        for each in (first, line):
            each.end()

    bench.runner.run(main())


def test_nobody_is_known_by_a_refusal_alone(bench: Bench, fill: Fill) -> None:
    async def main() -> None:
        fill(1)
        line = Line(bench)
        for _ in range(4):
            line.protocol.data_received(ONE)
            assert not line.repeated()
            await line.answer()
        line.end()

    bench.runner.run(main())


def shut(bench: Bench, error: QueueFullError | None) -> None:
    """Let the policy know that whoever asks now is refused by `error`, or that it is over."""
    policy = bench.host._batching._policy  # type: ignore[union-attr]
    policy._shut = None if error is None else Shut(1, Priority.NORMAL, inf, error)


@pytest.mark.parametrize("content", [ONE, GIVEN, JSON])
def test_while_the_queue_is_full_one_is_told_before_he_is_queued(
    bench: Bench, fill: Fill, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    async def main() -> None:
        line, other = await learned(bench, content), Line(bench, learns=False)
        fill(2.3)
        line.protocol.data_received(content)
        await line.answer()
        before, cycle = bench.counted("queue_full"), line.protocol.cycle
        shut(bench, QueueFullError(8, 8, 2.3, wait=2.3))
        found = []
        for _ in range(3):
            line.protocol.data_received(content)
            assert len(line.wire.sent) == 1  # in the same turn
            found += await line.answer()
            other.protocol.data_received(content)
            assert await other.answer() == found[-1:]
        assert line.protocol.cycle is cycle
        await asyncio.sleep(0)  # they are counted at the end of the turn
        assert bench.counted("queue_full") == before + 6
        assert bench.host.inflight.used == 0
        shut(bench, None)
        monkeypatch.undo()
        line.protocol.data_received(content)
        assert line.repeated()
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert not line.wire.closed
        for each in (line, other):
            each.end()

    bench.runner.run(main())


def test_a_server_that_stops_says_so_though_its_queue_was_full(
    bench: Bench, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        line = await learned(bench)
        fill(2.3)
        line.protocol.data_received(ONE)
        await line.answer()
        shut(bench, QueueFullError(8, 8, 2.3, wait=2.3))
        monkeypatch.setattr(bench.host, "phase", ModelPhase.STOPPING)
        line.protocol.data_received(ONE)
        (answer,) = await line.answer()
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "unavailable"
        shut(bench, None)
        line.end()

    bench.runner.run(main())
