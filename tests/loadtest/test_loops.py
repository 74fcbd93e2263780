"""The loops with senders whose answers a test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from loadtest import loops
from loadtest.figures import UNANSWERED, LatencyRecord
from loadtest.loops import Done, OpenLoop, RequestSender, closed_loop


class After:
    """Answers each request `delay` seconds later; never, if that is None."""

    def __init__(self, delay: float | None, outcome: str = "ok") -> None:
        self.delay = delay
        self.outcome = outcome
        self.open = self.most = 0
        self.closed = False

    def send(self, done: Done) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        if self.delay is not None:
            asyncio.get_running_loop().call_later(self.delay, self._answer, done)

    def close(self) -> None:
        self.closed = True

    def _answer(self, done: Done) -> None:
        self.open -= 1
        done(self.outcome, b"")


def test_a_client_asks_again_only_when_it_is_answered() -> None:
    senders = [After(0.01), After(0.01)]
    record = LatencyRecord()
    seconds = asyncio.run(closed_loop(senders, 0.2, record))
    assert 0.2 <= seconds < 2
    assert all(sender.most == 1 for sender in senders)
    assert 2 <= len(record.latencies) <= 42
    assert min(record.latencies) >= 0.009


def test_who_is_never_answered_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    record = LatencyRecord()
    silent = After(None)
    asyncio.run(closed_loop([silent, After(0.01, "500 internal")], 0.05, record))
    assert silent.closed
    assert record.errors[UNANSWERED] == 1
    assert record.errors["500 internal"] >= 1
    assert not record.latencies


def keep(
    rate: float, make: Callable[[], RequestSender], most: int = 64
) -> tuple[LatencyRecord, list[RequestSender]]:
    opened: list[RequestSender] = []

    async def connect() -> RequestSender:
        opened.append(make())
        return opened[-1]

    async def main() -> LatencyRecord:
        record = LatencyRecord()
        loop = OpenLoop(connect, rate, most=most)
        await loop.run(0.4, record)
        loop.close()
        return record

    return asyncio.run(main()), opened


def test_the_rate_is_kept_whatever_becomes_of_the_answers() -> None:
    record, senders = keep(500.0, lambda: After(0.05))
    # 200 on average; so far from it a Poisson process is once in a million runs.
    assert 130 <= len(record.latencies) <= 270
    assert not record.errors
    assert len(senders) > 5
    assert all(isinstance(sender, After) and sender.closed for sender in senders)


def test_waiting_for_a_free_connection_is_part_of_the_latency() -> None:
    record, senders = keep(200.0, lambda: After(0.02), most=1)
    assert len(senders) == 1
    # Twenty milliseconds each, five milliseconds apart: the last waits for all before it.
    assert max(record.latencies) > 0.3
    assert min(record.latencies) >= 0.019


def test_what_is_not_answered_in_an_open_loop_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    record, _ = keep(100.0, lambda: After(None))
    assert record.errors[UNANSWERED] > 10
    assert not record.latencies


def test_who_cannot_connect_fails() -> None:
    async def refuse() -> RequestSender:
        raise ConnectionRefusedError

    async def main() -> LatencyRecord:
        record = LatencyRecord()
        loop = OpenLoop(refuse, 200.0)
        await loop.run(0.2, record)
        return record

    found: Coroutine[Any, Any, LatencyRecord] = main()
    assert asyncio.run(found).errors["ConnectionRefusedError"] > 10
