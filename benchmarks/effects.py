"""How many requests of a candidate show that it is worse: our gates and two usual rules.

Seeded simulations of whole rollouts with a look after every tick: a tenth of the requests goes
to the candidate, latencies are lognormal. The rules beside ours are what dashboards and canary
tools do: the share of errors or the p99 so far a tenth above live's, and a Mann-Whitney test
of the latencies so far (or a test of two shares, of the errors) at 5 %, at each look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.table import Table

from rollout.domain import gates
from rollout.domain.counts import Window
from rollout.domain.gates import GateEvidence
from rollout.domain.spec import RolloutSpec
from tests.support.gate_simulation import Version, draw

RUNS = 300
TICKS = 150
TICK_SECONDS = 0.5
OURS, THEIRS = 20, 180  # requests of a tick
SEED = 4
SPEC = RolloutSpec(max_p99_ms=None, max_error_rate=0.01)
_SIGMA = 0.5
_MEDIAN_MS = 10.0
_P99_MS = _MEDIAN_MS * math.exp(2.3263 * _SIGMA)
_TAIL_MS = 3.0 * _P99_MS
_RATIO = 1.1
_TWO_SIDED_5 = 1.96
_LEAST = 100  # requests of the candidate before the usual rules judge
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Effect:
    """The shares of errors, live's and the candidate's; the candidate's tail and its mean."""

    name: str
    live_errors: float = 0.001
    errors: float = 0.001
    tail: float = 0.0
    faster: float = 1.0

    def draw(self, rng: np.random.Generator, *, candidate: bool) -> tuple[Floats, Floats]:
        """One rollout's latencies in ms and errors, [ticks, requests of a tick]."""
        shape = (TICKS, OURS if candidate else THEIRS)
        latencies = _MEDIAN_MS * np.exp(rng.normal(0.0, _SIGMA, shape))
        rate = self.errors if candidate else self.live_errors
        if candidate:
            latencies = np.where(rng.random(shape) < self.tail, _TAIL_MS, latencies * self.faster)
        return latencies, (rng.random(shape) < rate).astype(np.float64)


EFFECTS = (
    Effect("none: both alike"),
    Effect("errors 0.1 % -> 5 %", errors=0.05),
    Effect("errors 0.1 % -> 1 %", errors=0.01),
    Effect("slow requests 1 % -> 3 %", tail=0.02),
    Effect("all 5 % slower", faster=1.05),
    Effect("all 50 % slower", faster=1.5),
)
Rule = Callable[[Floats, Floats, Floats, Floats], bool]


def table() -> Table:
    """Which share of the rollouts each rule takes back, and after how many requests."""
    shown = Table(title=f"{RUNS} rollouts of {TICKS} looks, {OURS} requests of {OURS + THEIRS}")
    shown.add_column("Candidate")
    for name in ("ours", *RULES):
        shown.add_column(f"{name}: taken back, median requests", justify="right")
    for effect in EFFECTS:
        found = [_ours(effect), *(_usual(effect, rule) for rule in RULES.values())]
        shown.add_row(effect.name, *map(_cell, found))
    return shown


def _cell(ticks: npt.NDArray[np.int64]) -> str:
    hits = ticks[ticks > 0]
    median = f"{np.median(hits) * OURS:.0f}" if len(hits) else "-"
    return f"{len(hits) / len(ticks):.1%}, {median}"


def _ours(effect: Effect) -> npt.NDArray[np.int64]:
    """The tick (from 1) at which the product's gates take each rollout back; 0 for never.

    A tail is what lies beyond live's p99, with the margin for the candidate.
    """
    edge = (1.0 + SPEC.margin) * _P99_MS
    tail = effect.tail + (1.0 - effect.tail) * _beyond(edge, effect.faster)
    mine = Version(slow=tail, errors=effect.errors)
    theirs = Version(slow=_beyond(_P99_MS, 1.0), errors=effect.live_errors)
    rng, found = np.random.default_rng(SEED), np.zeros(RUNS, np.int64)
    for run in range(RUNS):
        evidence = GateEvidence()
        for tick in range(1, TICKS + 1):
            window = Window(draw(mine, OURS, rng), draw(theirs, THEIRS, rng), seconds=TICK_SECONDS)
            evidence = gates.fold(evidence, window, SPEC)
            if gates.harm(evidence, SPEC) is not None:
                found[run] = tick
                break
    return found


def _beyond(edge: float, faster: float) -> float:
    z = math.log(edge / (_MEDIAN_MS * faster)) / _SIGMA
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def _usual(effect: Effect, rule: Rule) -> npt.NDArray[np.int64]:
    rng, found = np.random.default_rng(SEED), np.zeros(RUNS, np.int64)
    for run in range(RUNS):
        mine = effect.draw(rng, candidate=True)
        theirs = effect.draw(rng, candidate=False)
        first = math.ceil(_LEAST / OURS)
        for tick in range(first, TICKS + 1):
            sides = (side[:tick].ravel() for side in (*mine, *theirs))
            if rule(*sides):
                found[run] = tick
                break
    return found


def _threshold(latencies: Floats, errors: Floats, live: Floats, live_errors: Floats) -> bool:
    beyond = errors.mean() > _RATIO * max(live_errors.mean(), SPEC.max_error_rate)
    return bool(beyond or np.quantile(latencies, 0.99) > _RATIO * np.quantile(live, 0.99))


def _tests(latencies: Floats, errors: Floats, live: Floats, live_errors: Floats) -> bool:
    return _shares_differ(errors, live_errors) or _slower(latencies, live)


def _shares_differ(errors: Floats, live_errors: Floats) -> bool:
    n, m = len(errors), len(live_errors)
    pooled = (errors.sum() + live_errors.sum()) / (n + m)
    noise = math.sqrt(pooled * (1.0 - pooled) * (1.0 / n + 1.0 / m))
    return noise > 0 and (errors.mean() - live_errors.mean()) / noise > _TWO_SIDED_5


def _slower(latencies: Floats, live: Floats) -> bool:
    """Mann-Whitney by its normal approximation; ties do not occur before the tail."""
    n, m = len(latencies), len(live)
    below = np.searchsorted(np.sort(live), latencies).sum()
    noise = math.sqrt(n * m * (n + m + 1) / 12.0)
    return bool((below - n * m / 2.0) / noise > _TWO_SIDED_5)


RULES: dict[str, Rule] = {"threshold of 1.1": _threshold, "tests at 5 %": _tests}
