"""The rules that the gates are compared with, on clear-cut samples."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import effects

ROWS = 2000


def sides(slowdown: float = 1.0, errors: float = 0.0) -> tuple[effects.Floats, ...]:
    """Return latencies and errors, the candidate's first."""
    rng = np.random.default_rng(1)
    mine, theirs = (10.0 * np.exp(rng.normal(0.0, 0.5, ROWS)) for _ in range(2))
    failed = (np.arange(ROWS) < errors * ROWS).astype(np.float64)
    return mine * slowdown, failed, theirs, np.zeros(ROWS)


@pytest.mark.parametrize("rule", effects.RULES.values(), ids=list(effects.RULES))
def test_rule__equal_or_better_candidate__keeps_it(rule: effects.Rule) -> None:
    assert not rule(*sides(slowdown=0.5))


@pytest.mark.parametrize("name", ["threshold of 1.1", "Mann-Whitney"])
def test_latency_rule__candidate_twice_as_slow__rolls_back(name: str) -> None:
    assert effects.RULES[name](*sides(slowdown=2.0))


@pytest.mark.parametrize("name", ["threshold of 1.1", "z-test of errors"])
def test_error_rule__candidate_with_ten_percent_errors__rolls_back(name: str) -> None:
    assert effects.RULES[name](*sides(errors=0.1))


def test_simulated_latencies__live_version__one_percent_is_beyond_its_p99() -> None:
    """The gates' counts and the rules' latencies have the same distribution."""
    assert effects.share_beyond(effects.P99_MS, 1.0) == pytest.approx(0.01, abs=1e-4)
    drawn, _ = effects.EFFECTS[3].draw(np.random.default_rng(2), candidate=True)
    assert (drawn > effects.P99_MS).mean() == pytest.approx(0.03, abs=0.01)


def test_gates__failing_and_equal_candidate__only_the_failing_one_is_rolled_back() -> None:
    equal, failing = (effects.gates_ticks(effects.EFFECTS[number], 40) for number in (0, 1))
    assert (equal > 0).mean() <= 2 * effects.SPEC.alpha
    assert (failing > 0).all()
