"""Counters of one observation of the traffic, and their reduction to what the gates judge. Pure.

A proxy's counters only rise. The difference of two readings is one tick; a reading in which
any counter fell comes from a restarted proxy and gives no tick. Latencies are counted by
histogram edge, so "slower than L" is exact at an edge and never an interpolated percentile.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import Slot

_P99_MIN_SAMPLES = 100

# Envoy's histograms keep two significant digits, so these are all the exact edges there are.
LATENCY_EDGES_MS: tuple[float, ...] = (
    *(float(ms) for ms in range(1, 100)),
    *(float(ms) for ms in range(100, 1000, 10)),
    *(float(ms) for ms in range(1000, 10_000, 100)),
    *(float(ms) for ms in range(10_000, 61_000, 1000)),
)

# UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS; the other
# statuses blame the caller. RESOURCE_EXHAUSTED is also a full queue.
GRPC_FAILURES = (2, 4, 8, 13, 14, 15)
GRPC_CLIENT_ERRORS = (1, 3, 5, 6, 7, 9, 10, 11, 12, 16)


def latency_edge(limit_ms: float, edges: tuple[float, ...] = LATENCY_EDGES_MS) -> float:
    """Return the smallest exact histogram edge at or above `limit_ms`; INVALID_INPUT beyond all."""
    for edge in edges:
        if edge >= limit_ms:
            return edge
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"a latency limit of {limit_ms:g} ms cannot be judged: latencies are counted up to "
        f"{edges[-1]:g} ms",
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """One slot's counters: `within[i]` of `timed` requests took at most edge `i`.

    `errors` and `client_errors` (what the caller is blamed for) are among the `requests` that
    were answered. `abandoned` came on top: their clients left before any answer.
    """

    requests: int = 0
    errors: int = 0
    timed: int = 0
    within: tuple[int, ...] = ()
    client_errors: int = 0
    abandoned: int = 0

    def minus(self, earlier: Totals) -> Totals | None:
        """What was counted since `earlier`; None if a counter fell in between."""
        difference = self._combined(earlier, operator.sub)
        return None if min(*_numbers_of(difference), *difference.within) < 0 else difference

    def plus(self, other: Totals) -> Totals:
        """Both counted together."""
        return self._combined(other, operator.add)

    def _combined(self, other: Totals, operation: Callable[[int, int], int]) -> Totals:
        nothing = (0,) * max(len(self.within), len(other.within))
        sides = zip(self.within or nothing, other.within or nothing, strict=True)
        requests, errors, timed, client_errors, abandoned = map(
            operation, _numbers_of(self), _numbers_of(other)
        )
        within = tuple([operation(mine, theirs) for mine, theirs in sides])
        return Totals(requests, errors, timed, within, client_errors, abandoned)

    def slower_than(self, limit_ms: float, edges: tuple[float, ...]) -> int:
        """How many took longer than the first edge at or above `limit_ms`."""
        if not self.within:
            return 0
        index = min(bisect_left(edges, limit_ms), len(edges) - 1)
        return self.timed - self.within[index]

    def p99_edge(self, edges: tuple[float, ...]) -> float | None:
        """The first edge that at least 99 % stayed within; None with too few samples."""
        if self.timed < _P99_MIN_SAMPLES:
            return None
        wanted = 0.99 * self.timed
        return next((edge for edge, n in zip(edges, self.within, strict=True) if n >= wanted), None)


_numbers_of = operator.attrgetter("requests", "errors", "timed", "client_errors", "abandoned")


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """One slot's generated answers, as its servers time them: their first tokens, and the rest.

    `first` counts answers at `FIRST_TOKEN_EDGES_MS`; `each` their mean time per further token at
    `TOKEN_EDGES_MS`.
    """

    first: Totals = field(default_factory=Totals)
    each: Totals = field(default_factory=Totals)

    def plus(self, other: AnswerTimes) -> AnswerTimes:
        """Both counted together."""
        return AnswerTimes(self.first.plus(other.first), self.each.plus(other.each))

    def minus(self, earlier: AnswerTimes) -> AnswerTimes | None:
        """What was counted since `earlier`; None if a server was restarted in between."""
        if not self.first.within or not earlier.first.within:
            return None
        first, each = self.first.minus(earlier.first), self.each.minus(earlier.each)
        return None if first is None or each is None else AnswerTimes(first, each)


@dataclass(frozen=True, slots=True)
class Reading:
    """One tick: rising totals, whether the proxy finds the slot healthy, requests in flight.

    A slot is healthy while at least one of its replicas is. `shadow` counts the copies of
    requests that a slot got, whose answers are discarded; no gate on traffic counts them.
    """

    totals: Mapping[Slot, Totals]
    healthy: Mapping[Slot, bool]
    active: Mapping[Slot, int]
    shadow: Mapping[Slot, Totals] = field(default_factory=dict)
    answers: Mapping[Slot, AnswerTimes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """One slot in one tick.

    `slow` of `timed` requests were beyond the absolute limit of p99, `late` of them beyond that
    of p50, `tail` beyond the reference that is compared with the other slot. `abandoned`
    requests got no answer and are not among `requests`. Of `begun` generated answers `late_first`
    had their first token too late, and of `continued` ones `slow_tokens` were too slow after it.
    """

    requests: int = 0
    errors: int = 0
    timed: int = 0
    slow: int = 0
    tail: int = 0
    client_errors: int = 0
    abandoned: int = 0
    late: int = 0
    begun: int = 0
    late_first: int = 0
    continued: int = 0
    slow_tokens: int = 0

    @property
    def total(self) -> int:
        """All requests, answered or not."""
        return self.requests + self.abandoned

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, _counts_of(self), _counts_of(other)))


_counts_of = operator.attrgetter(*Counts.__slots__)


@dataclass(frozen=True, slots=True)
class Window:
    """Both slots in one tick of `seconds`.

    `representative` says that the candidate had enough of the traffic for its latencies to prove
    something: batches at a small share are emptier than they will be.
    """

    candidate: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    representative: bool = True
    seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class LatencyRule:
    """Where the counting edges lie: the absolute limits, and the tail reference per side.

    `reference_ms` is the live slot's p99 over the ticks before this one, so it is known
    before the tick is counted; the candidate is allowed `margin` more.
    """

    edges: tuple[float, ...]
    limit_ms: float | None
    reference_ms: float | None
    margin: float
    median_ms: float | None = None

    def count(self, totals: Totals, *, candidate: bool) -> Counts:
        """Reduce one slot's tick; what has no limit counts nothing."""
        reference = self.reference_ms
        if reference is not None and candidate:
            reference *= 1.0 + self.margin
        slow, late, tail = (
            0 if limit is None else totals.slower_than(limit, self.edges)
            for limit in (self.limit_ms, self.median_ms, reference)
        )
        return Counts(
            totals.requests,
            min(totals.errors, totals.requests),
            totals.timed,
            slow,
            tail,
            min(totals.client_errors, totals.requests),
            totals.abandoned,
            late,
        )


def difference(before: Reading | None, after: Reading) -> Mapping[Slot, Totals] | None:
    """Each slot's tick between two readings; None without one or across a restart."""
    if before is None:
        return None
    parts: dict[Slot, Totals] = {}
    for slot in Slot:
        part = after.totals[slot].minus(before.totals[slot])
        if part is None:
            return None
        parts[slot] = part
    return parts
