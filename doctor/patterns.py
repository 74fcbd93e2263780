"""Choose how a model is used: online, batch, stream or precomputed, by what each costs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mlctl.core.errors import ErrorCode, MlctlError

DAY_SECONDS = 86_400.0
# A batch starts, reads and writes for minutes: for fresher predictions it would run all the time.
MIN_BATCH_SECONDS = 900.0
# Requests are not spread evenly over a day, and a server at its limit has long queues.
PEAK_FACTOR = 3.0
MAX_UTILIZATION = 0.5
# An assumption: a look-up in SQLite or Redis and the protocol around it, on one core.
LOOKUPS_PER_SECOND = 5_000.0
# What one request takes besides the model: protocol, queue and proxy.
OVERHEAD_MS = 2.0


class Consumer(StrEnum):
    """How predictions are used."""

    REQUESTS = "requests"
    TABLE = "table"
    EVENTS = "events"


class Pattern(StrEnum):
    """How a model is run."""

    ONLINE = "online"
    BATCH = "batch"
    STREAM = "stream"
    PRECOMPUTED = "precomputed"


@dataclass(frozen=True, slots=True)
class WorkloadNeeds:
    """What is needed of a model.

    Attributes:
        consumer: how the predictions are used.
        rows_per_day: predictions that are used in a day.
        max_age_seconds: how old the data behind a prediction may be, 0 for the newest; None, a day
            for a table, else 0.
        latency_ms: time that a caller can wait at p99; None without callers.
        keys: number of different entities in the requests, if their inputs are stored; None if the
            inputs come with the request.
        rows_per_second: rows that one core computes in a second.
    """

    consumer: Consumer
    rows_per_day: float
    max_age_seconds: float | None = None
    latency_ms: float | None = None
    keys: int | None = None
    rows_per_second: float = 1_000.0

    def __post_init__(self) -> None:
        if self.rows_per_day <= 0 or self.rows_per_second <= 0:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "rows per day and rows per second must be above 0"
            )

    @property
    def age_seconds(self) -> float:
        """`max_age_seconds`, or its default."""
        default = DAY_SECONDS if self.consumer is Consumer.TABLE else 0.0
        return default if self.max_age_seconds is None else self.max_age_seconds


@dataclass(frozen=True, slots=True)
class PatternCost:
    """One pattern: core-hours per day, how they are computed, and why it does not fit, if so."""

    pattern: Pattern
    core_hours: float
    sum: str
    obstacle: str | None


def compare_patterns(workload: WorkloadNeeds) -> tuple[PatternCost, ...]:
    """Return all patterns: those that fit first, the cheapest of them first."""
    found = (
        PatternCost(pattern, hours, text, _obstacle(pattern, workload))
        for pattern, (hours, text) in _costs(workload)
    )
    return tuple(sorted(found, key=lambda each: (each.obstacle is not None, each.core_hours)))


def choose_pattern(workload: WorkloadNeeds) -> PatternCost:
    """Return the cheapest pattern that fits; INVALID_INPUT with the obstacles if none does."""
    best = compare_patterns(workload)[0]
    if best.obstacle is not None:
        reasons = "; ".join(
            f"{each.pattern}: {each.obstacle}" for each in compare_patterns(workload)
        )
        raise MlctlError(ErrorCode.INVALID_INPUT, f"no pattern fits ({reasons})")
    return best


def commands(pattern: Pattern) -> tuple[str, ...]:
    """Return the commands that begin with this pattern; capitals stand for what you fill in."""
    last = {
        Pattern.ONLINE: ("mlctl up NAME BENTO",),
        Pattern.BATCH: ("mlctl batch run BENTO --in ROWS --out SCORES",),
        Pattern.STREAM: ("mlctl stream run BENTO --in TOPIC --out TOPIC",),
        Pattern.PRECOMPUTED: (
            "mlctl batch run BENTO --in ROWS --out precomputed://NAME --keep KEY",
            "MLCTL_PRECOMPUTED=NAME mlctl serve BENTO",
        ),
    }[pattern]
    return ("mlctl optimize MODEL --data LABELLED_ROWS", "mlctl build MODEL", *last)


def _costs(workload: WorkloadNeeds) -> Iterator[tuple[Pattern, tuple[float, str]]]:
    rate = workload.rows_per_day / DAY_SECONDS
    peak = PEAK_FACTOR * rate
    model = workload.rows_per_second
    yield Pattern.ONLINE, _servers(peak, model, MAX_UTILIZATION)
    yield Pattern.STREAM, _servers(peak, model, 1.0)
    yield Pattern.BATCH, _job(workload.rows_per_day, model)
    runs = DAY_SECONDS / max(workload.age_seconds, MIN_BATCH_SECONDS)
    job, job_sum = _job((workload.keys or 0) * max(1.0, runs), model)
    lookups, lookup_sum = _servers(peak, LOOKUPS_PER_SECOND, MAX_UTILIZATION)
    yield Pattern.PRECOMPUTED, (job + lookups, f"{job_sum}, and lookups: {lookup_sum}")


def _servers(peak: float, capacity: float, utilization: float) -> tuple[float, str]:
    """Return core-hours per day of cores that always run."""
    cores = max(1, math.ceil(peak / (capacity * utilization)))
    text = f"peak {peak:,.1f} rows/s / ({capacity:,.0f} rows/s x {utilization:.0%})"
    return 24.0 * cores, f"{text} = {cores} {'core' if cores == 1 else 'cores'} x 24 h"


def _job(rows: float, capacity: float) -> tuple[float, str]:
    hours = rows / capacity / 3600.0
    return hours, f"{rows:,.0f} rows/day / {capacity:,.0f} rows/s = {hours:.2f} core-hours"


def _obstacle(pattern: Pattern, workload: WorkloadNeeds) -> str | None:
    """Return why `pattern` does not fit, or None."""
    online = workload.consumer is Consumer.REQUESTS
    fresh = workload.age_seconds < MIN_BATCH_SECONDS
    minutes = MIN_BATCH_SECONDS / 60.0
    if online != (pattern in (Pattern.ONLINE, Pattern.PRECOMPUTED)):
        return "callers wait for each answer" if online else "no caller waits for an answer"
    if pattern in (Pattern.BATCH, Pattern.PRECOMPUTED) and fresh:
        age = workload.age_seconds / 60.0
        return f"inputs may be at most {age:g} min old (a batch needs {minutes:g} min)"
    if pattern is Pattern.PRECOMPUTED and workload.keys is None:
        return "callers bring the inputs, so answers cannot be computed ahead"
    if pattern is Pattern.ONLINE and workload.latency_ms is not None:
        needed = OVERHEAD_MS + 1000.0 / workload.rows_per_second
        if workload.latency_ms < needed:
            return f"one row takes about {needed:.1f} ms (limit {workload.latency_ms:g} ms)"
    return None
