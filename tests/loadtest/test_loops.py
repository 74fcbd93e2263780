"""The loops with senders that answer after a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mlctl.loadtest import loops
from mlctl.loadtest.figures import UNANSWERED, LatencyRecord
from mlctl.loadtest.loops import Done, OpenLoop, RequestSender, closed_loop


class After:
    """Answers each request `delay` seconds later; never, if that is None."""

    def __init__(self, delay: float | None, outcome: str = "ok") -> None:
        self.delay = delay
        self.outcome = outcome
        self.open = self.max_open = 0
        self.closed = False

    def send(self, done: Done) -> None:
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        if self.delay is not None:
            asyncio.get_running_loop().call_later(self.delay, self._answer, done)

    def close(self) -> None:
        self.closed = True

    def _answer(self, done: Done) -> None:
        self.open -= 1
        done(self.outcome, b"")


def test_closed_loop__clients__send_after_each_answer() -> None:
    senders = [After(0.01), After(0.01)]
    record = LatencyRecord()
    seconds = asyncio.run(closed_loop(senders, 0.2, record))
    assert 0.2 <= seconds < 2
    assert all(sender.max_open == 1 for sender in senders)
    assert 2 <= len(record.latencies) <= 42
    assert min(record.latencies) >= 0.009


def test_closed_loop__missing_answer__counts_as_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    record = LatencyRecord()
    silent = After(None)
    asyncio.run(closed_loop([silent, After(0.01, "500 internal")], 0.05, record))
    assert silent.closed
    assert record.errors[UNANSWERED] == 1
    assert record.errors["500 internal"] >= 1
    assert not record.latencies


def keep(
    rate: float, make: Callable[[], RequestSender], max_senders: int = 64
) -> tuple[LatencyRecord, list[RequestSender]]:
    opened: list[RequestSender] = []

    async def connect() -> RequestSender:
        opened.append(make())
        return opened[-1]

    async def main() -> LatencyRecord:
        record = LatencyRecord()
        loop = OpenLoop(connect, rate, max_senders=max_senders)
        await loop.run(0.4, record)
        loop.close()
        return record

    return asyncio.run(main()), opened


def test_open_loop__slow_answers__keeps_the_rate() -> None:
    record, senders = keep(500.0, lambda: After(0.05))
    # 200 on average; so far from it a Poisson process is once in a million runs.
    assert 130 <= len(record.latencies) <= 270
    assert not record.errors
    assert len(senders) > 5
    assert all(isinstance(sender, After) and sender.closed for sender in senders)


def test_open_loop__wait_for_a_sender__is_part_of_the_latency() -> None:
    record, senders = keep(200.0, lambda: After(0.02), max_senders=1)
    assert len(senders) == 1
    # Twenty milliseconds each, five milliseconds apart: the last waits for all before it.
    assert max(record.latencies) > 0.3
    assert min(record.latencies) >= 0.019


def test_open_loop__missing_answers__count_as_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    record, _ = keep(100.0, lambda: After(None))
    assert record.errors[UNANSWERED] > 10
    assert not record.latencies


def test_open_loop__failed_connections__count_as_errors() -> None:
    async def refuse() -> RequestSender:
        raise ConnectionRefusedError

    async def main() -> LatencyRecord:
        record = LatencyRecord()
        loop = OpenLoop(refuse, 200.0)
        await loop.run(0.2, record)
        return record

    found: Coroutine[Any, Any, LatencyRecord] = main()
    assert asyncio.run(found).errors["ConnectionRefusedError"] > 10
