"""How many requests show that a candidate is worse: the gates beside three usual rules.

Seeded simulations with an evaluation after every tick: a tenth of the requests goes to the
candidate, latencies are lognormal. The usual rules judge all requests so far, at each tick: the
candidate's error rate or p99 is a tenth above the live version's; a z-test of two error rates
at 5 %; a Mann-Whitney test of the latencies at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.gate_simulation import Version, draw
from benchmarks.result import BenchmarkResult
from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.traffic.counts import Window

TICKS = 150
TICK_SECONDS = 0.5
CANDIDATE, LIVE = 20, 180  # requests per tick
SEED = 4
SPEC = RolloutSpec(max_p99_ms=None, max_error_rate=0.01)
_SIGMA = 0.5
_MEDIAN_MS = 10.0
P99_MS = _MEDIAN_MS * math.exp(2.3263 * _SIGMA)
_TAIL_MS = 3.0 * P99_MS
_RATIO = 1.1
_Z_5_PERCENT = 1.96
_MIN_REQUESTS = 100  # of the candidate, before the usual rules judge
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Effect:
    """How the candidate differs from the live version.

    Attributes:
        live_errors, errors: error rates of the live version and the candidate.
        tail: share of the candidate's requests that take three times the live p99.
        slowdown: factor on the candidate's other latencies.
    """

    name: str
    live_errors: float = 0.001
    errors: float = 0.001
    tail: float = 0.0
    slowdown: float = 1.0

    def draw(self, rng: np.random.Generator, *, candidate: bool) -> tuple[Floats, Floats]:
        """Draw one rollout's latencies in ms and errors, both [ticks, requests per tick]."""
        shape = (TICKS, CANDIDATE if candidate else LIVE)
        latencies = _MEDIAN_MS * np.exp(rng.normal(0.0, _SIGMA, shape))
        rate = self.errors if candidate else self.live_errors
        if candidate:
            latencies = np.where(rng.random(shape) < self.tail, _TAIL_MS, latencies * self.slowdown)
        return latencies, (rng.random(shape) < rate).astype(np.float64)


EFFECTS = (
    Effect("equal versions"),
    Effect("errors 0.1 % -> 5 %", errors=0.05),
    Effect("errors 0.1 % -> 1 %", errors=0.01),
    Effect("slow requests 1 % -> 3 %", tail=0.02),
    Effect("all 5 % slower", slowdown=1.05),
    Effect("all 50 % slower", slowdown=1.5),
)
Rule = Callable[[Floats, Floats, Floats, Floats], bool]


def measure(runs: int, result: BenchmarkResult) -> None:
    """Add the share of the rollouts that each rule rolls back, and after how many requests."""
    title = f"{runs} rollouts of {TICKS} ticks, {CANDIDATE} of {CANDIDATE + LIVE} requests each"
    table = result.table(f"{title}: rolled back, median requests", "candidate", "gates", *RULES)
    for effect in EFFECTS:
        found = [gates_ticks(effect, runs), *(rule_ticks(effect, r, runs) for r in RULES.values())]
        table.add(effect.name, *map(_cell, found))


def _cell(ticks: npt.NDArray[np.int64]) -> str:
    hits = ticks[ticks > 0]
    median = f", {np.median(hits) * CANDIDATE:.0f}" if len(hits) else ""
    return f"{len(hits) / len(ticks):.1%}{median}"


def gates_ticks(effect: Effect, runs: int) -> npt.NDArray[np.int64]:
    """Return the tick (from 1) at which the gates roll each rollout back; 0 for never.

    A request is slow above the live version's p99, a candidate's above that with the margin.
    """
    edge = (1.0 + SPEC.margin) * P99_MS
    slow = effect.tail + (1.0 - effect.tail) * share_beyond(edge, effect.slowdown)
    candidate = Version(slow=slow, errors=effect.errors)
    live = Version(slow=share_beyond(P99_MS, 1.0), errors=effect.live_errors)
    rng, found = np.random.default_rng(SEED), np.zeros(runs, np.int64)
    for run in range(runs):
        evidence = GateEvidence()
        for tick in range(1, TICKS + 1):
            counts = draw(candidate, CANDIDATE, rng), draw(live, LIVE, rng)
            evidence = fold(evidence, Window(*counts, seconds=TICK_SECONDS), SPEC)
            if gates.harm(evidence, SPEC) is not None:
                found[run] = tick
                break
    return found


def share_beyond(edge: float, slowdown: float) -> float:
    """Return the share of lognormal latencies, all times `slowdown`, above `edge` ms."""
    z = math.log(edge / (_MEDIAN_MS * slowdown)) / _SIGMA
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def rule_ticks(effect: Effect, rule: Rule, runs: int) -> npt.NDArray[np.int64]:
    """Return the tick at which `rule` rolls each rollout back; 0 for never."""
    rng, found = np.random.default_rng(SEED), np.zeros(runs, np.int64)
    for run in range(runs):
        sides = (*effect.draw(rng, candidate=True), *effect.draw(rng, candidate=False))
        for tick in range(math.ceil(_MIN_REQUESTS / CANDIDATE), TICKS + 1):
            if rule(*(side[:tick].ravel() for side in sides)):
                found[run] = tick
                break
    return found


def _threshold(latencies: Floats, errors: Floats, live: Floats, live_errors: Floats) -> bool:
    broken = errors.mean() > _RATIO * max(live_errors.mean(), SPEC.max_error_rate)
    return bool(broken or np.quantile(latencies, 0.99) > _RATIO * np.quantile(live, 0.99))


def _z_test(_: Floats, errors: Floats, __: Floats, live_errors: Floats) -> bool:
    n, m = len(errors), len(live_errors)
    pooled = (errors.sum() + live_errors.sum()) / (n + m)
    noise = math.sqrt(pooled * (1.0 - pooled) * (1.0 / n + 1.0 / m))
    return noise > 0 and (errors.mean() - live_errors.mean()) / noise > _Z_5_PERCENT


def _mann_whitney(latencies: Floats, _: Floats, live: Floats, __: Floats) -> bool:
    """Use the normal approximation; ties do not occur before the tail."""
    n, m = len(latencies), len(live)
    below = np.searchsorted(np.sort(live), latencies).sum()
    noise = math.sqrt(n * m * (n + m + 1) / 12.0)
    return bool((below - n * m / 2.0) / noise > _Z_5_PERCENT)


RULES: dict[str, Rule] = {
    "threshold of 1.1": _threshold,
    "z-test of errors": _z_test,
    "Mann-Whitney": _mann_whitney,
}
