"""Latency of several variants, measured in interleaved rounds so that they can be compared.

A machine's speed drifts with its load and temperature. In each round every variant runs once, in
rotating order, so drift affects all of them alike and two variants are compared by the ratio
of their times within each round. Rounds are added until those ratios decide which variant is
faster by a gain that counts, or until the time limit.

A session on the CPU runs on the thread that calls it, so its time is the CPU time of that thread:
what other programs take of the processor meanwhile is not charged to a variant. Other devices are
timed by the clock.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from mlctl.core.clock import Clock
from mlctl.optimize.data import Rows, Tensors
from mlctl.services.model.session import Session

# Variants whose times differ by less than this share count as equally fast.
TIE = 0.05

_WARM_UP_RUNS = 3
_WARM_UP_SECONDS = 0.1
# A shorter run comes after an untimed one: the other variants' weights have filled the caches.
_CACHE_SECONDS = 0.02

# Per variant and batch size; a model too slow for that gets the smallest number of rounds.
_MIN_ROUNDS, _MAX_ROUNDS, _SMALLEST_ROUNDS = 15, 300, 3
_SECONDS, _MAX_SECONDS = 0.15, 2.0

# What a clock shows at least, in milliseconds.
_LEAST_MS = 1e-6
# 99 % two-sided, for the order statistics around a median.
_Z = 2.576


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Milliseconds for one batch of `batch` rows on one thread, `samples_ms` [rounds].

    On the CPU they are the CPU time of that thread.

    Samples at the same index come from the same round for all variants of one measurement.
    """

    batch: int
    samples_ms: tuple[float, ...]

    @property
    def runs(self) -> int:
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        return self._percentile(50)

    @property
    def q1_ms(self) -> float:
        return self._percentile(25)

    @property
    def q3_ms(self) -> float:
        return self._percentile(75)

    @property
    def p95_ms(self) -> float:
        return self._percentile(95)

    @property
    def rows_per_second(self) -> float:
        return self.batch / self.median_ms * 1000.0

    def summary(self) -> dict[str, Any]:
        """Return median, quartiles and 95th percentile for a report."""
        return {
            "batch": self.batch,
            "runs": self.runs,
            "median_ms": self.median_ms,
            "q1_ms": self.q1_ms,
            "q3_ms": self.q3_ms,
            "p95_ms": self.p95_ms,
        }

    def _percentile(self, percent: float) -> float:
        return round(float(np.percentile(self.samples_ms, percent)), 6)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median ratio of paired times with its 99 % confidence interval."""

    low: float
    median: float
    high: float


def time_ratio(latency: BatchLatency, baseline: BatchLatency) -> Ratio:
    """Return how many times as long `latency` takes per row as `baseline`, paired by round.

    Batches of different sizes ran one after the other and not in the same rounds. The interval
    is that of a median by order statistics, which assumes no distribution.
    """
    ratios = sorted(
        own / latency.batch / (other / baseline.batch)
        for own, other in zip(latency.samples_ms, baseline.samples_ms, strict=False)
    )
    count = len(ratios)
    first = max(0, math.floor(count / 2 - _Z / 2 * math.sqrt(count)))
    return Ratio(ratios[first], float(np.median(ratios)), ratios[count - 1 - first])


def measure_interleaved(
    sessions: Mapping[str, Session],
    batches: Mapping[str, Sequence[int]],
    rows: Rows,
    clock: Clock,
    min_gain: float,
) -> dict[str, tuple[BatchLatency, ...]]:
    """Time each session at its batch sizes `batches`, all that share a size in common rounds.

    Rounds end when it is decided for each pair whether one is faster by the share `min_gain`.
    """
    found: dict[str, list[BatchLatency]] = {name: [] for name in sessions}
    # A collection inside a run would be charged to the model.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for batch in sorted({size for sizes in batches.values() for size in sizes}):
            timed = {name: item for name, item in sessions.items() if batch in batches[name]}
            inputs = rows.take(np.arange(batch) % rows.count).inputs
            for name, latency in _measure_batch(timed, batch, inputs, clock, min_gain).items():
                found[name].append(latency)
    finally:
        if collecting:
            gc.enable()
    return {name: tuple(latencies) for name, latencies in found.items()}


def fewest_seconds(run: float) -> float:
    """Return how long a variant is measured at one batch size, if it is soon decided.

    `run` is the time of one run, in seconds.
    """
    rounds = max(_MIN_ROUNDS * _each(run), _SECONDS)
    return _warm_seconds(run) + _bounded(run, rounds)


def most_seconds(run: float) -> float:
    """Return how long a variant is measured at one batch size at most."""
    return _warm_seconds(run) + _bounded(run, _MAX_SECONDS)


def _bounded(run: float, seconds: float) -> float:
    most = min(seconds, _MAX_SECONDS, _MAX_ROUNDS * _each(run))
    return max(most, _SMALLEST_ROUNDS * _each(run))


def _each(run: float) -> float:
    """Return the seconds of a round, with the untimed run before a short one."""
    return run * (1 + (run < _CACHE_SECONDS))


def _warm_seconds(run: float) -> float:
    return max(run, min(_WARM_UP_RUNS * run, _WARM_UP_SECONDS))


def _measure_batch(
    sessions: Mapping[str, Session],
    batch: int,
    inputs: Tensors,
    clock: Clock,
    min_gain: float,
) -> dict[str, BatchLatency]:
    for session in sessions.values():
        _warm_up(session, inputs, clock)
    on_cpu = all(session.provider == "cpu" for session in sessions.values())
    read = clock.thread if on_cpu else clock.monotonic
    names = list(sessions)
    samples: dict[str, list[float]] = {name: [] for name in names}
    begin = clock.monotonic()
    for number in range(_MAX_ROUNDS):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            samples[name].append(_timed_run(sessions[name], inputs, samples[name], read))
        seconds = (clock.monotonic() - begin) / len(names)
        rounds = number + 1
        if seconds >= _MAX_SECONDS and rounds >= _SMALLEST_ROUNDS:
            break
        # Comparing each two takes longer than the rounds themselves if the models are small.
        if seconds < _SECONDS or rounds % _MIN_ROUNDS:
            continue
        if _decided(_latencies(samples, batch).values(), min_gain):
            break
    return _latencies(samples, batch)


def _latencies(samples: Mapping[str, Sequence[float]], batch: int) -> dict[str, BatchLatency]:
    return {name: BatchLatency(batch, tuple(ms)) for name, ms in samples.items()}


def _warm_up(session: Session, inputs: Tensors, clock: Clock) -> None:
    begin = clock.monotonic()
    for _ in range(_WARM_UP_RUNS):
        session.run(inputs)
        if clock.monotonic() - begin >= _WARM_UP_SECONDS:
            return


def _timed_run(
    session: Session, inputs: Tensors, samples: Sequence[float], read: Callable[[], float]
) -> float:
    """Return the milliseconds of one run, by the clock that `read` reads."""
    if not samples or samples[-1] < _CACHE_SECONDS * 1000.0:
        session.run(inputs)
    start = read()
    session.run(inputs)
    # On a virtual machine a thread's clock can stand still for a run that changes its core.
    return max(round((read() - start) * 1000.0, 6), _LEAST_MS)


def _decided(latencies: Iterable[BatchLatency], min_gain: float) -> bool:
    """Return whether each of any two is clearly faster by `min_gain` than the other, or not."""
    limit = 1 / (1 + min_gain)
    ratios = (time_ratio(one, other) for one, other in permutations(latencies, 2))
    return all(ratio.high < limit or ratio.low >= limit for ratio in ratios)
