"""Many rollouts at once in front of the gates, as arrays with one entry per rollout.

The sums are those of `rollout.domain.evidence` and its `gates`, whose constants they use; a test
compares both on the same ticks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rollout.domain import e_values, gates
from rollout.domain.evidence import SLOW_SHARE
from rollout.domain.spec import RolloutSpec

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of one slot in each rollout; every request is timed."""

    n: Numbers
    errors: Numbers
    slow: Numbers
    tail: Numbers


Side = Callable[[np.random.Generator, int], Tick]


@dataclass
class Judges:
    """The rollback gates of `runs` rollouts."""

    spec: RolloutSpec
    runs: int
    generator: np.random.Generator
    logs: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    bad: dict[str, Numbers] = field(default_factory=dict)
    sums: dict[str, Numbers] = field(default_factory=dict)

    def fold(self, ours: Tick, theirs: Tick) -> npt.NDArray[np.bool_]:
        """Add a tick; which rollouts are rolled back after it."""
        limit = self.spec.max_error_rate
        self._share("errors", ours.errors, ours.n, limit)
        self._sign("errors_live", (ours.errors, ours.n), (theirs.errors, theirs.n))
        self._sign("tail_live", (ours.tail, ours.n), (theirs.tail, theirs.n))
        rules = {
            "errors": self.bad["errors"] >= gates.MIN_BAD_TICKS,
            "errors_live": self._beyond("errors_live", self.spec.margin * limit),
            "tail_live": self._beyond("tail_live", 0.0),
        }
        values = [np.zeros(self.runs)]  # the gate on client errors, of which there are none
        if self.spec.max_p99_ms is not None:
            self._share("slow", ours.slow, ours.n, SLOW_SHARE)
            rules["slow"] = self.bad["slow"] >= gates.MIN_BAD_TICKS
        threshold = math.log(1.0 / self.spec.alpha)
        fires = np.zeros(self.runs, bool)
        for name, rule in rules.items():
            value = _log_mean(self.logs[name])
            values.append(value)
            fires |= (value >= threshold) & rule
        return fires & (_log_mean(np.stack(values, axis=1)) >= threshold)

    def _share(self, name: str, hits: Numbers, n: Numbers, limit: float) -> None:
        excess = np.where(n > 0, hits / np.maximum(n, 1) / limit - 1.0, 0.0)
        self._add(name, np.log1p(np.outer(excess, e_values.SHARE_STAKES)))
        self.bad[name] = self.bad.get(name, np.zeros(self.runs, np.int64)) + (hits > limit * n)

    def _sign(
        self, name: str, ours: tuple[Numbers, Numbers], theirs: tuple[Numbers, Numbers]
    ) -> None:
        n = np.minimum(ours[1], theirs[1])
        mine, other = (
            np.where(n == total, hits, self.generator.hypergeometric(hits, total - hits, n))
            for hits, total in (ours, theirs)
        )
        self._add(name, np.log1p(np.outer(np.sign(mine - other), e_values.SIGN_BETS)))
        for key, value in zip(("k", "n", "K", "N"), (*ours, *theirs), strict=True):
            self.sums[name + key] = self.sums.get(name + key, np.zeros(self.runs, np.int64)) + value

    def _add(self, name: str, step: npt.NDArray[np.float64]) -> None:
        self.logs[name] = self.logs.get(name, np.zeros_like(step)) + step

    def _beyond(self, name: str, slack: float) -> npt.NDArray[np.bool_]:
        k, n, others, total = (self.sums[name + key] for key in ("k", "n", "K", "N"))
        return k / np.maximum(n, 1) > others / np.maximum(total, 1) + slack


def rolled_back_at(
    ours: Side, theirs: Side, spec: RolloutSpec, *, ticks: int, runs: int, seed: int
) -> Numbers:
    """The tick (from 1) at which each rollout is rolled back, looking after each; 0 for never."""
    generator = np.random.default_rng(seed)
    judges = Judges(spec, runs, generator)
    found = np.zeros(runs, np.int64)
    for tick in range(1, ticks + 1):
        fires = judges.fold(ours(generator, tick), theirs(generator, tick))
        found[(found == 0) & fires] = tick
    return found


def proved_at(
    draw: Callable[[np.random.Generator], npt.NDArray[np.float64]],
    n: int,
    limit: float,
    alpha: float,
    *,
    ticks: int,
    runs: int,
    seed: int,
) -> Numbers:
    """The tick at which hits of `n` per tick prove a rate below `limit`; 0 for never."""
    generator = np.random.default_rng(seed)
    hit = np.asarray(e_values.bound_step(e_values.start(4), 1, 1, limit))
    miss = np.asarray(e_values.bound_step(e_values.start(4), 0, 1, limit))
    logs, found = np.zeros((runs, 4)), np.zeros(runs, np.int64)
    for tick in range(1, ticks + 1):
        hits = draw(generator)
        logs += np.outer(hits, hit) + np.outer(n - hits, miss)
        found[(found == 0) & (_log_mean(logs) >= math.log(1.0 / alpha))] = tick
    return found


def _log_mean(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    top = logs.max(axis=1)
    mean: npt.NDArray[np.float64] = top + np.log(np.exp(logs - top[:, None]).mean(axis=1))
    return mean
