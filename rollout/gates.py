"""The verdict on a candidate: pure functions of counters folded into evidence.

Rollback needs the mean of all e-values at 1/alpha, so a good candidate is rolled back with
probability at most alpha over the whole rollout, however often it is looked at (ticks are
taken as exchangeable while the candidate is good). The final step needs evidence the other
way. No data is never a pass. See docs of `eprocess` for the tests themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rollout import eprocess
from rollout.counts import Counts, Window
from rollout.eprocess import Logs
from rollout.model import RolloutSpec

# p99 <= L is the same statement as P(latency > L) <= 1 %.
SLOW_SHARE = 0.01
MIN_BAD_TICKS = 3
MIN_TICKS = 3
UNHEALTHY_LOOKS = 3
Hits = tuple[int, int]  # how many of how many
_NOISE = 2.0  # standard errors
_MOST_PER_TICK = math.log1p(max(eprocess.SIGN_BETS))
_HIGHEST_LIMIT = 0.99  # a limit of 1 could not be exceeded, nor bet on


class Action(StrEnum):
    """What a verdict asks for."""

    ADVANCE = "advance"
    HOLD = "hold"
    ROLLBACK = "rollback"
    INCONCLUSIVE = "inconclusive"


class Gate(StrEnum):
    """What a verdict rests on."""

    ERRORS_VS_LIMIT = "errors_vs_limit"
    ERRORS_VS_LIVE = "errors_vs_live"
    CLIENT_ERRORS_VS_LIVE = "client_errors_vs_live"
    LATENCY_VS_LIMIT = "latency_vs_limit"
    LATENCY_VS_LIVE = "latency_vs_live"
    READY = "ready"
    HEALTH = "health"
    CONFIG = "config"
    OPERATOR = "operator"
    UNWATCHED = "unwatched"
    DATA = "data"
    BAKE_TIME = "bake_time"
    PROOF = "proof"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision: `value` was measured against `limit` on `n` requests, and `why` in words."""

    action: Action
    gate: Gate
    why: str
    value: float | None = None
    limit: float | None = None
    n: int = 0


def _above() -> Logs:
    return eprocess.start(5)


def _below() -> Logs:
    return eprocess.start(4)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All ticks so far, as sums and e-processes; a fold, so events rebuild it exactly."""

    seed: int = 0
    ticks: int = 0
    candidate: Counts = field(default_factory=Counts)
    live: Counts = field(default_factory=Counts)
    errors_vs_limit: Logs = field(default_factory=_above)
    errors_vs_live: Logs = field(default_factory=_above)
    client_errors_vs_live: Logs = field(default_factory=_above)
    latency_vs_limit: Logs = field(default_factory=_above)
    latency_vs_live: Logs = field(default_factory=_above)
    errors_proof: Logs = field(default_factory=_below)
    latency_proof: Logs = field(default_factory=_below)
    bad_error_ticks: int = 0
    bad_latency_ticks: int = 0

    def log_values(self, spec: RolloutSpec) -> dict[Gate, float]:
        """The logarithm of each rollback gate's e-value."""
        values = {
            Gate.ERRORS_VS_LIMIT: eprocess.log_mean(self.errors_vs_limit),
            Gate.ERRORS_VS_LIVE: eprocess.log_mean(self.errors_vs_live),
            Gate.CLIENT_ERRORS_VS_LIVE: eprocess.log_mean(self.client_errors_vs_live),
            Gate.LATENCY_VS_LIVE: eprocess.log_mean(self.latency_vs_live),
        }
        if spec.max_p99_ms is not None:
            values[Gate.LATENCY_VS_LIMIT] = eprocess.log_mean(self.latency_vs_limit)
        return values


def fold(evidence: Evidence, window: Window, spec: RolloutSpec) -> Evidence:
    """Add one tick. A tick without candidate requests changes nothing."""
    ours, theirs = window.candidate, window.live
    if ours.seen == 0:
        return evidence
    tick = evidence.ticks
    errors = (ours.errors, ours.requests)
    slow = (ours.slow, ours.timed)
    limit = spec.max_error_rate
    tail_sign = eprocess.thinned_sign(
        (ours.tail, ours.timed), (theirs.tail, theirs.timed), (evidence.seed, tick, 1)
    )
    return replace(
        evidence,
        ticks=tick + 1,
        candidate=evidence.candidate.plus(ours),
        live=evidence.live.plus(theirs),
        errors_vs_limit=_worse(evidence.errors_vs_limit, errors, limit),
        errors_proof=_better(evidence.errors_proof, errors, limit),
        latency_vs_limit=_worse(evidence.latency_vs_limit, slow, SLOW_SHARE),
        latency_proof=_better(evidence.latency_proof, slow, SLOW_SHARE),
        errors_vs_live=_against_live(evidence.errors_vs_live, _failed, evidence, window, spec),
        client_errors_vs_live=_against_live(
            evidence.client_errors_vs_live, _blamed, evidence, window, spec
        ),
        latency_vs_live=eprocess.sign_step(evidence.latency_vs_live, tail_sign),
        bad_error_ticks=evidence.bad_error_ticks + breaks(errors, limit),
        bad_latency_ticks=evidence.bad_latency_ticks + breaks(slow, SLOW_SHARE),
    )


def breaks(hits: Hits, limit: float) -> bool:
    """Whether one tick's (hits, n) lies beyond `limit`."""
    return hits[0] > limit * hits[1]


def harm(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    """ROLLBACK with the strongest gate that may fire, or None."""
    threshold = math.log(1.0 / spec.alpha)
    values = evidence.log_values(spec)
    if eprocess.log_mean(tuple(values.values())) < threshold:
        return None
    for gate, value in sorted(values.items(), key=lambda item: -item[1]):
        verdict = _RULES[gate](evidence, spec)
        if value >= threshold and verdict is not None:
            return verdict
    return None


def unproved(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD with the gate whose limit is not yet shown to be kept, or None when all are."""
    threshold = math.log(1.0 / spec.alpha)
    ours = evidence.candidate
    if eprocess.log_mean(evidence.errors_proof) < threshold:
        return _hold_proof("errors", (ours.errors, ours.requests), spec.max_error_rate)
    if spec.max_p99_ms is not None and eprocess.log_mean(evidence.latency_proof) < threshold:
        return _hold_proof("slow requests", (ours.slow, ours.timed), SLOW_SHARE)
    return None


def doubtful(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while what was seen lies beyond a limit, though too little to prove harm; else None.

    A candidate that looks bad gets no more traffic before more requests have decided.
    """
    ours = evidence.candidate
    shares = [(Gate.ERRORS_VS_LIMIT, "failed", (ours.errors, ours.requests), spec.max_error_rate)]
    if spec.max_p99_ms is not None:
        slow = f"took longer than {spec.max_p99_ms:g} ms"
        shares.append((Gate.LATENCY_VS_LIMIT, slow, (ours.slow, ours.timed), SLOW_SHARE))
    for gate, what, hits, limit in shares:
        if breaks(hits, limit):
            why = f"{hits[0]} of {hits[1]} requests {what}: too many to go on, too few to decide"
            return Verdict(Action.HOLD, gate, why, _rate(*hits), limit, hits[1])
    return _worse_than_live(evidence, spec)


def _worse_than_live(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    """HOLD while more than noise lies between the candidate and live, over the whole rollout.

    It also covers the bake, in which live has no requests that a tick could be compared with.
    """
    pairs = [
        (Gate.ERRORS_VS_LIVE, _failed(evidence.candidate), _failed(evidence.live)),
        (Gate.CLIENT_ERRORS_VS_LIVE, _blamed(evidence.candidate), _blamed(evidence.live)),
    ]
    for gate, (hits, n), theirs in pairs:
        limit = _usual(theirs, n, spec)
        if theirs[1] and breaks((hits, n), limit):
            why = (
                f"{hits} of {n} requests {_WHAT[gate]}, {theirs[0]} of {theirs[1]} on the live "
                "revision: too many to go on, too few to decide"
            )
            return Verdict(Action.HOLD, gate, why, _rate(hits, n), limit, n)
    return None


def _against_live(
    logs: Logs,
    hits_of: Callable[[Counts], Hits],
    evidence: Evidence,
    window: Window,
    spec: RolloutSpec,
) -> Logs:
    """Fold one tick's comparison with live: with the same tick, or else with what live did before.

    In the bake live has no requests. A tick then counts for no more than a sign would, because
    the requests of one tick depend on each other.
    """
    ours, theirs, before = map(hits_of, (window.candidate, window.live, evidence.live))
    if theirs[1]:
        seed = (evidence.seed, evidence.ticks, 0 if hits_of is _failed else 2)
        return eprocess.sign_step(logs, eprocess.thinned_sign(ours, theirs, seed))
    if not before[1]:
        return logs
    stepped = _worse(logs, ours, _usual(before, before[1], spec))
    return tuple(min(new, old + _MOST_PER_TICK) for old, new in zip(logs, stepped, strict=True))


def _usual(theirs: Hits, n: int, spec: RolloutSpec) -> float:
    """The share up to which `n` requests are still like live's: its own, some slack, and noise."""
    share = _rate(*theirs)
    noise = _NOISE * math.sqrt(share * (1.0 - share) / n) if n else 0.0
    return min(share + spec.max_error_rate + noise, _HIGHEST_LIMIT)


def _failed(counts: Counts) -> Hits:
    """Requests without a good end, of all. Impatient clients alone leave both colours alike."""
    return counts.errors + counts.abandoned, counts.seen


def _blamed(counts: Counts) -> Hits:
    """Answers that blame the caller, of all answers: live gets the same callers."""
    return counts.client_errors, counts.requests


def _hold_proof(what: str, hits: Hits, limit: float) -> Verdict:
    why = f"{hits[0]} {what} in {hits[1]} do not yet prove a share below {limit:g}"
    return Verdict(Action.HOLD, Gate.PROOF, why, _rate(*hits), limit, hits[1])


def _worse(logs: Logs, hits: Hits, limit: float) -> Logs:
    return eprocess.bound_step(logs, *hits, limit, eprocess.alternatives_above(limit))


def _better(logs: Logs, hits: Hits, limit: float) -> Logs:
    return eprocess.bound_step(logs, *hits, limit, eprocess.alternatives_below(limit))


def _rate(hits: int, n: int) -> float:
    return hits / n if n else 0.0


def _errors_vs_limit(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    ours = evidence.candidate
    rate = _rate(ours.errors, ours.requests)
    if evidence.bad_error_ticks < MIN_BAD_TICKS:
        return None
    why = f"{ours.errors} of {ours.requests} requests failed, at most {spec.max_error_rate:g} may"
    limit = spec.max_error_rate
    return Verdict(Action.ROLLBACK, Gate.ERRORS_VS_LIMIT, why, rate, limit, ours.requests)


def _errors_vs_live(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = _failed(evidence.candidate), _failed(evidence.live)
    return _beyond_live(Gate.ERRORS_VS_LIVE, ours, theirs, spec)


def _client_errors_vs_live(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = _blamed(evidence.candidate), _blamed(evidence.live)
    return _beyond_live(Gate.CLIENT_ERRORS_VS_LIVE, ours, theirs, spec)


def _beyond_live(gate: Gate, ours: Hits, theirs: Hits, spec: RolloutSpec) -> Verdict | None:
    rate, limit = _rate(*ours), _rate(*theirs) + spec.margin * spec.max_error_rate
    if rate <= limit:
        return None
    why = (
        f"{ours[0]} of {ours[1]} requests {_WHAT[gate]}, "
        f"{theirs[0]} of {theirs[1]} on the live revision"
    )
    return Verdict(Action.ROLLBACK, gate, why, rate, limit, ours[1])


def _latency_vs_limit(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    ours = evidence.candidate
    if evidence.bad_latency_ticks < MIN_BAD_TICKS:
        return None
    rate = _rate(ours.slow, ours.timed)
    why = (
        f"{ours.slow} of {ours.timed} requests took longer than {spec.max_p99_ms:g} ms, "
        f"at most {SLOW_SHARE:g} may"
    )
    return Verdict(Action.ROLLBACK, Gate.LATENCY_VS_LIMIT, why, rate, SLOW_SHARE, ours.timed)


def _latency_vs_live(evidence: Evidence, spec: RolloutSpec) -> Verdict | None:
    ours, theirs = evidence.candidate, evidence.live
    rate, limit = _rate(ours.tail, ours.timed), _rate(theirs.tail, theirs.timed)
    if rate <= limit:
        return None
    why = (
        f"{ours.tail} of {ours.timed} requests were slower than the live revision's p99 "
        f"by {spec.margin:.0%}, of its own {theirs.tail} of {theirs.timed} beyond that p99"
    )
    return Verdict(Action.ROLLBACK, Gate.LATENCY_VS_LIVE, why, rate, limit, ours.timed)


_WHAT = {
    Gate.ERRORS_VS_LIVE: "failed or were given up by their clients",
    Gate.CLIENT_ERRORS_VS_LIVE: "were refused as the caller's error",
}
_RULES = {
    Gate.ERRORS_VS_LIMIT: _errors_vs_limit,
    Gate.ERRORS_VS_LIVE: _errors_vs_live,
    Gate.CLIENT_ERRORS_VS_LIVE: _client_errors_vs_live,
    Gate.LATENCY_VS_LIMIT: _latency_vs_limit,
    Gate.LATENCY_VS_LIVE: _latency_vs_live,
}
