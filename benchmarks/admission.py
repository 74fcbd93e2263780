"""Admission under overload, simulated: predicted waits beside CoDel and newest first.

One core runs a model and handles its requests; arrivals are random. Every policy has the same
batches and costs. "predicted wait" is the server's own `BatchScheduler`, which rejects on arrival.
The others queue all requests and drop some when a batch begins: "CoDel" (RFC 8289, 5 ms and 100 ms)
the oldest, and "newest first" (adaptive LIFO with controlled delay: Maurer, "Fail at Scale", ACM
Queue 13 (8), 2015) serves the newest and drops those that wait for more than 20 ms. A drop costs
more than a rejection on arrival, because its request was read, parsed and queued.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.result import argument_parser, measuring
from mlctl.core.errors import MlctlError
from mlctl.services.online.batching.scheduler import BatchScheduler, Limits, Ticket

FACTORS = (0.9, 1.1, 1.5, 3.0)
_MAX_ROWS = 64
_DEADLINE = 1.0
_GOOD_MS = 100.0
# Seconds of the core: a batch of n rows, a request that is answered, one that is dropped after it
# was queued, and one that is rejected on arrival (`benchmarks.overload`).
_FIXED, _ROW = 0.0005, 0.00010
_ANSWERED, _DROPPED, _REJECTED = 30e-6, 30e-6, 19e-6
_CODEL_TARGET, _CODEL_INTERVAL, _NEWEST_TARGET = 0.005, 0.1, 0.02


def batch_seconds(rows: int) -> float:
    """Return the seconds of the model for a batch."""
    return _FIXED + _ROW * rows


def capacity() -> float:
    """Return the requests per second of full batches."""
    return _MAX_ROWS / (batch_seconds(_MAX_ROWS) + _MAX_ROWS * _ANSWERED)


class Policy(Protocol):
    """Takes requests by their time of arrival, and gives batches of them."""

    def offer(self, now: float) -> float:
        """Take a request; return what that costs, in seconds."""
        ...

    def release(self, now: float) -> tuple[Sequence[float], float]:
        """Return the next batch, and what the requests that were dropped cost."""
        ...

    def finished(self, seconds: float) -> None:
        """Take the time of the batch."""
        ...


class PredictedWait:
    """The server's own scheduler."""

    def __init__(self) -> None:
        self._scheduler = BatchScheduler[Ticket](Limits(_MAX_ROWS, 4096))

    def offer(self, now: float) -> float:
        try:
            self._scheduler.offer(Ticket(1, "key", now, now + _DEADLINE))
        except MlctlError:
            return _REJECTED
        return 0.0

    def release(self, now: float) -> tuple[Sequence[float], float]:
        expired = self._scheduler.expire(now)
        batch = [ticket.arrived for ticket in self._scheduler.release(now)]
        return batch, len(expired) * _DROPPED

    def finished(self, seconds: float) -> None:
        self._scheduler.finished(seconds)


@dataclass
class CoDel:
    """Controlled delay: while the wait stays above the target, drop ever more often."""

    queue: deque[float] = field(default_factory=deque)
    above: float = math.inf  # when the wait will have been above the target for an interval
    next_drop: float = math.inf
    drops: int = 0

    def offer(self, now: float) -> float:
        self.queue.append(now)
        return 0.0

    def release(self, now: float) -> tuple[Sequence[float], float]:
        batch: list[float] = []
        dropped = 0
        while self.queue and len(batch) < _MAX_ROWS:
            arrived = self.queue.popleft()
            if self._drops(now, now - arrived):
                dropped += 1
            else:
                batch.append(arrived)
        return batch, dropped * _DROPPED

    def finished(self, seconds: float) -> None:
        """Learn nothing."""

    def _drops(self, now: float, wait: float) -> bool:
        if wait < _CODEL_TARGET or not self.queue:
            self.above = self.next_drop = math.inf
            return False
        if self.above == math.inf:
            self.above = now + _CODEL_INTERVAL
        if now < self.above:
            return False
        if self.next_drop == math.inf:
            self.drops, self.next_drop = max(1, self.drops - 2), now
        if now < self.next_drop:
            return False
        self.next_drop += _CODEL_INTERVAL / math.sqrt(self.drops)
        self.drops += 1
        return True


@dataclass
class NewestFirst:
    """The newest requests first; those that waited for longer than the target are dropped."""

    queue: deque[float] = field(default_factory=deque)

    def offer(self, now: float) -> float:
        self.queue.append(now)
        return 0.0

    def release(self, now: float) -> tuple[Sequence[float], float]:
        before = len(self.queue)
        while self.queue and now - self.queue[0] > _NEWEST_TARGET:
            self.queue.popleft()
        dropped = before - len(self.queue)
        batch = [self.queue.pop() for _ in range(min(_MAX_ROWS, len(self.queue)))]
        return batch, dropped * _DROPPED

    def finished(self, seconds: float) -> None:
        """Learn nothing."""


def simulate(policy: Policy, factor: float, seconds: float, seed: int = 0) -> np.ndarray:
    """Return the times of arrival and of the answer of each answered request, as two columns."""
    random = np.random.default_rng(seed)
    count = int(factor * capacity() * seconds)
    arrivals = deque(np.sort(random.uniform(0, seconds, count)).tolist())
    answered: list[tuple[float, float]] = []
    now = 0.0
    while arrivals:
        while arrivals and arrivals[0] <= now:
            now += policy.offer(arrivals.popleft())
        batch, cost = policy.release(now)
        now += cost
        if not batch:
            now = max(now, arrivals[0] if arrivals else now)
            continue
        # The answers are written while the next batch runs, on the same core.
        start, end = now, now + batch_seconds(len(batch)) + len(batch) * _ANSWERED
        while arrivals and arrivals[0] <= end:
            end += policy.offer(arrivals.popleft())
        policy.finished(end - start)
        now = end
        answered += [(arrived, now) for arrived in batch]
    return np.array(answered)


def main() -> None:
    """Simulate every policy at every load."""
    parser = argument_parser("admission", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="per load")
    options = parser.parse_args()
    with measuring("admission", options.json) as result:
        title = f"a model of {capacity():,.0f} requests/s in batches of {_MAX_ROWS}"
        table = result.table(
            title, "load", "policy", "answered of capacity", "in 100 ms", "p50 ms", "p99 ms"
        )
        policies = {"predicted wait": PredictedWait, "CoDel": CoDel, "newest first": NewestFirst}
        for factor in FACTORS:
            for name, policy in policies.items():
                found = simulate(policy(), factor, options.seconds)
                in_time = found[found[:, 1] < options.seconds]
                waits = (in_time[:, 1] - in_time[:, 0]) * 1e3
                share = len(in_time) / options.seconds / capacity()
                good = np.count_nonzero(waits <= _GOOD_MS) / options.seconds / capacity()
                p50, p99 = np.percentile(waits, [50, 99])
                table.add(
                    f"{factor:g}x", name, f"{share:.0%}", f"{good:.0%}", float(p50), float(p99)
                )


if __name__ == "__main__":
    main()
