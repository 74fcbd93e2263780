"""Who is known and refused is told what anyone is, and a refusal teaches what may come again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from services.batching.admission import QueueFullError
from services.lean.protocol import lean_protocol
from tests.services.lean.conftest import BODY, Bench
from tests.services.lean.lines import Line, post
from tests.services.lean.test_repeat import ONE, ask, learned

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
        base = lean_protocol(bench.inference)
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
