"""The rules that the gates are compared with, on samples whose verdict is plain."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import effects

ROWS = 2000


def sides(faster: float = 1.0, errors: float = 0.0) -> tuple[effects.Floats, ...]:
    """Latencies and errors of both sides; the candidate's first."""
    rng = np.random.default_rng(1)
    mine, theirs = (10.0 * np.exp(rng.normal(0.0, 0.5, ROWS)) for _ in range(2))
    failed = (np.arange(ROWS) < errors * ROWS).astype(np.float64)
    return mine * faster, failed, theirs, np.zeros(ROWS)


@pytest.mark.parametrize("rule", effects.RULES.values(), ids=list(effects.RULES))
def test_a_rule_sees_what_is_far_beyond_and_not_what_is_better(rule: effects.Rule) -> None:
    assert rule(*sides(faster=2.0))
    assert rule(*sides(errors=0.1))
    assert not rule(*sides(faster=0.5))


def test_the_tail_of_the_model_is_one_percent() -> None:
    """What the gates are given agrees with what the rules draw."""
    assert effects._beyond(effects._P99_MS, 1.0) == pytest.approx(0.01, abs=1e-4)
    drawn, _ = effects.EFFECTS[3].draw(np.random.default_rng(2), candidate=True)
    assert (drawn > effects._P99_MS).mean() == pytest.approx(0.03, abs=0.01)


def test_ours_takes_back_what_fails_and_not_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "RUNS", 40)
    alike, failing = (effects._ours(effects.EFFECTS[place]) for place in (0, 1))
    assert (alike > 0).mean() <= 2 * effects.SPEC.alpha
    assert (failing > 0).all()
