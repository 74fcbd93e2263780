"""How often the gates are wrong and how soon they are right: seeded simulations of whole rollouts.

A look is taken after every tick. With 2000 runs the standard error of a share of 5 % is 0.5
points, so a true rate of false alarms of 6.1 % would pass `<= alpha` once in fifty times; the
rates found here are at most 1.8 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from rollout.domain import gates
from rollout.domain.counts import Counts, Window
from rollout.domain.gates import GateEvidence
from rollout.domain.spec import RolloutSpec
from tests.support.gate_simulation import Judges, Side, Tick, proved_at, rolled_back_at

RUNS = 2000
LIMITED = RolloutSpec(max_p99_ms=50.0, max_error_rate=0.01)
COMPARED = RolloutSpec(max_p99_ms=None, max_error_rate=0.01)
SPLITS = [(100, 100), (10, 190)]


def steady(n: int, error: float, slow: float, runs: int = RUNS) -> Side:
    def draw(generator: np.random.Generator, _tick: int) -> Tick:
        slows = generator.binomial(n, slow, runs)
        return Tick(np.full(runs, n), generator.binomial(n, error, runs), slows, slows)

    return draw


def with_pauses(n: int, share: float = 0.01, slow: float = 0.004, runs: int = RUNS) -> Side:
    """Pauses of this slot alone: half of such a tick is slow. 0.9 % of all requests are."""

    def draw(generator: np.random.Generator, _tick: int) -> Tick:
        slows = generator.binomial(n, slow, runs)
        slows = np.where(generator.random(runs) < share, n // 2, slows)
        return Tick(np.full(runs, n), generator.binomial(n, 0.002, runs), slows, slows)

    return draw


class Bursts:
    """Bursts of errors that hit both slots, a rate that swings, and steps of the weight."""

    def __init__(self, runs: int = RUNS) -> None:
        self._runs = runs
        self._tick = 0
        self._rate = np.zeros(runs)

    def side(self, *, candidate: bool) -> Side:
        def draw(generator: np.random.Generator, tick: int) -> Tick:
            if tick != self._tick:
                self._tick = tick
                swing = 0.01 + 0.009 * np.sin(tick / 20)
                self._rate = np.where(generator.random(self._runs) < 0.05, 0.3, swing)
            weight = (2, 10, 50, 100)[min(3, tick // 100)]
            n = np.full(self._runs, weight if candidate else 200 - weight)
            errors = generator.binomial(n, self._rate)
            return Tick(n, errors, errors, errors)

        return draw


def false_alarms(ours: Side, theirs: Side, spec: RolloutSpec, ticks: int = 400) -> float:
    found = rolled_back_at(ours, theirs, spec, ticks=ticks, runs=RUNS, seed=11)
    return float((found > 0).mean())


@pytest.mark.parametrize(("n", "others"), SPLITS)
def test_equal_revisions_close_to_their_limits(n: int, others: int) -> None:
    ours, theirs = steady(n, 0.008, 0.008), steady(others, 0.008, 0.008)
    assert false_alarms(ours, theirs, LIMITED) <= LIMITED.alpha


@pytest.mark.parametrize(("n", "others"), SPLITS)
@pytest.mark.parametrize("spec", [LIMITED, COMPARED], ids=["limited", "compared"])
def test_equal_revisions_with_pauses_of_their_own(n: int, others: int, spec: RolloutSpec) -> None:
    """Requests of a tick are slow together; bets on single requests fail in 10 to 60 % here."""
    assert false_alarms(with_pauses(n), with_pauses(others), spec) <= spec.alpha


def test_equal_revisions_under_shared_bursts_and_a_swinging_rate() -> None:
    bursts, spec = Bursts(), RolloutSpec(max_p99_ms=None, max_error_rate=0.05)
    ours, theirs = bursts.side(candidate=True), bursts.side(candidate=False)
    assert false_alarms(ours, theirs, spec) <= spec.alpha


@pytest.mark.parametrize(
    ("n", "others", "error", "tail", "median", "p90"),
    [
        (100, 100, (0.0, 0.0), (0.03, 0.01), 18, 33),
        (10, 190, (0.0, 0.0), (0.03, 0.01), 105, 220),
        (10, 190, (0.0, 0.0), (0.2, 0.01), 11, 16),
        (10, 190, (0.05, 0.0), (0.0, 0.0), 15, 30),
        (100, 100, (0.05, 0.0), (0.0, 0.0), 5, 7),
        (10, 190, (1.0, 0.0), (0.0, 0.0), 3, 3),
    ],
)
def test_a_worse_candidate_is_found_in_time(
    n: int,
    others: int,
    error: tuple[float, float],
    tail: tuple[float, float],
    median: int,
    p90: int,
) -> None:
    """Shares of (candidate, live); ticks until the rollback. No latency limit is given."""
    runs = 500
    ours, theirs = (
        steady(size, error[side], tail[side], runs) for side, size in enumerate((n, others))
    )
    found = rolled_back_at(ours, theirs, COMPARED, ticks=600, runs=runs, seed=12)
    assert (found > 0).mean() >= 0.99
    ticks = found[found > 0]
    assert float(np.median(ticks)) <= median
    assert float(np.quantile(ticks, 0.9)) <= p90


@pytest.mark.parametrize("rows_together", [False, True])
def test_a_candidate_at_its_limit_is_hardly_ever_proved(rows_together: bool) -> None:
    """Also where a trial is the share of the bad rows in a request, which are bad together."""
    limit, n = 0.01, 20

    def draw(generator: np.random.Generator) -> np.ndarray:
        if rows_together:
            return generator.binomial(n, 2 * limit, RUNS) * 0.5
        return generator.binomial(n, limit, RUNS).astype(float)

    found = proved_at(draw, n, limit, 0.05, ticks=400, runs=RUNS, seed=13)
    assert (found > 0).mean() <= 0.05


@pytest.mark.parametrize(("rate", "median", "p90"), [(0.001, 480, 960), (0.005, 2100, 4700)])
def test_a_good_candidate_is_proved_in_time(rate: float, median: int, p90: int) -> None:
    """Requests until a rate is shown to be below 1 %."""
    n, runs = 20, 1000
    found = proved_at(
        lambda generator: generator.binomial(n, rate, runs).astype(float),
        *(n, 0.01, 0.05),
        ticks=600,
        runs=runs,
        seed=14,
    )
    assert (found > 0).mean() >= 0.95
    requests = found[found > 0] * n
    assert np.median(requests) <= median
    assert np.quantile(requests, 0.9) <= p90


def test_the_simulation_is_the_gates_themselves() -> None:
    """The same ticks through `gates.fold` and `gates.harm`; equal n needs no random thinning."""
    runs, ticks = 60, 80
    generator = np.random.default_rng(15)
    judges = Judges(LIMITED, runs, generator)
    evidences = [GateEvidence(seed=1) for _ in range(runs)]
    ours, theirs = steady(50, 0.02, 0.02, runs), steady(50, 0.01, 0.01, runs)
    disagreements = fired = 0
    for tick in range(ticks):
        left, right = ours(generator, tick), theirs(generator, tick)
        fires = judges.fold(left, right)
        for run in range(runs):
            window = Window(_counts(left, run), _counts(right, run))
            evidences[run] = gates.fold(evidences[run], window, LIMITED)
            harm = gates.harm(evidences[run], LIMITED) is not None
            disagreements += harm != fires[run]
            fired += harm
    assert disagreements == 0
    assert 0 < fired < runs * ticks


def _counts(side: Tick, run: int) -> Counts:
    n, errors, slow, tail = (int(each[run]) for each in (side.n, side.errors, side.slow, side.tail))
    return Counts(n, errors, n, slow, tail)
