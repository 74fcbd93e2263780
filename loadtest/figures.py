"""The outcomes of one run of load, and the figures computed from them. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

OK = "ok"
UNANSWERED = "unanswered"
_STAGE = re.compile(rb"(queue|infer);dur=([0-9.]+)")
_QUANTILES = (50, 95, 99, 99.9)


@dataclass(slots=True)
class LatencyRecord:
    """The requests so far: `latencies` in seconds, of answered requests only.

    `stages` sums the milliseconds in Server-Timing of the `timed` answers.
    """

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    stages: dict[str, float] = field(default_factory=dict)
    timed: int = 0

    def add(self, seconds: float, outcome: str, timing: bytes = b"") -> None:
        """Count one request by its outcome; `timing` is the answer's Server-Timing."""
        if outcome != OK:
            self.errors[outcome] += 1
            return
        self.latencies.append(seconds)
        if timing:
            self.timed += 1
            for name, value in _STAGE.findall(timing):
                stage = name.decode()
                self.stages[stage] = self.stages.get(stage, 0.0) + float(value)


@dataclass(frozen=True, slots=True)
class ServerUse:
    """Resources that a server used during a run; None if unknown."""

    rows_per_batch: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of `seconds`: a closed loop of `clients`, or an open loop at `rate` per second.

    Latencies and stages are in milliseconds; the stages are means. `per_cpu_second` is the number
    of answers per second of the server's CPU time, `memory_bytes` the memory of its processes at
    the end, with shared pages counted once.
    """

    clients: int | None
    rate: float | None
    seconds: float
    answered: int
    errors: Mapping[str, int]
    per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    queue_ms: float | None
    infer_ms: float | None
    rows_per_batch: float | None
    per_cpu_second: float | None
    memory_bytes: int | None = None

    @property
    def failed(self) -> int:
        """The number of requests that were rejected or not answered."""
        return sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as --json shows them."""
        return asdict(self)


def summarize(
    record: LatencyRecord,
    seconds: float,
    *,
    clients: int | None = None,
    rate: float | None = None,
    use: ServerUse | None = None,
) -> Figures:
    """Summarize a run that took `seconds`; percentiles are None without an answer."""
    use = use or ServerUse()
    answered = len(record.latencies)
    percentiles: list[float | None] = [None] * len(_QUANTILES)
    if answered:
        percentiles = [float(q) * 1e3 for q in np.percentile(record.latencies, _QUANTILES)]
    p50, p95, p99, p999 = percentiles
    stages = {name: total / record.timed for name, total in record.stages.items()}
    return Figures(
        clients=clients,
        rate=rate,
        seconds=seconds,
        answered=answered,
        errors=dict(record.errors.most_common()),
        per_second=answered / seconds,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        p999_ms=p999,
        queue_ms=stages.get("queue"),
        infer_ms=stages.get("infer"),
        rows_per_batch=use.rows_per_batch,
        per_cpu_second=answered / use.cpu_seconds if use.cpu_seconds else None,
        memory_bytes=use.memory_bytes,
    )
