from __future__ import annotations

import math

import numpy as np
import pytest

from rollout.domain import e_values


def test_no_evidence_is_an_e_value_of_one() -> None:
    assert e_values.log_mean(e_values.start(5)) == 0.0


def test_the_bound_test_is_a_likelihood_ratio() -> None:
    logs = e_values.bound_step((0.0,) * 4, hits=2, n=5, limit=0.1)
    for log, p in zip(logs, e_values.alternatives_below(0.1), strict=True):
        assert log == pytest.approx(math.log((p / 0.1) ** 2 * ((1 - p) / 0.9) ** 3))


def test_the_bound_test_is_a_martingale_at_its_limit() -> None:
    """The expectation over one trial at rate = limit leaves every bet's e-value at 1."""
    hit = e_values.bound_step(e_values.start(4), 1, 1, 0.01)
    miss = e_values.bound_step(e_values.start(4), 0, 1, 0.01)
    for up, down in zip(hit, miss, strict=True):
        assert 0.01 * math.exp(up) + 0.99 * math.exp(down) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_trial_that_is_a_share_never_counts_for_more_than_its_parts(share: float) -> None:
    """E over a random hit with that chance is the bet on the share; the fold stays below it."""
    whole = e_values.bound_step(e_values.start(4), share, 1, 0.2)
    hit = e_values.bound_step(e_values.start(4), 1, 1, 0.2)
    miss = e_values.bound_step(e_values.start(4), 0, 1, 0.2)
    for mixed, up, down in zip(whole, hit, miss, strict=True):
        assert math.exp(mixed) < share * math.exp(up) + (1 - share) * math.exp(down)


@pytest.mark.parametrize("limit", [0.001, 0.01, 0.5, 0.99])
def test_bets_lie_on_their_side(limit: float) -> None:
    assert all(0 < bet < limit for bet in e_values.alternatives_below(limit))


@pytest.mark.parametrize("limit", [0.001, 0.01, 0.5, 0.99])
def test_the_share_test_is_a_martingale_and_never_loses_all(limit: float) -> None:
    """Whatever the spread of a tick's share: here all or nothing, at a mean of the limit."""
    start = e_values.start(len(e_values.SHARE_STAKES))
    everything = e_values.share_step(start, 50, 50, limit)
    nothing = e_values.share_step(start, 0, 50, limit)
    for up, down in zip(everything, nothing, strict=True):
        assert limit * math.exp(up) + (1 - limit) * math.exp(down) == pytest.approx(1.0)
        assert math.isfinite(down)
    assert e_values.share_step(start, 0, 0, limit) == start


def test_the_sign_test_gains_and_loses_symmetrically() -> None:
    start = e_values.start(len(e_values.SIGN_BETS))
    up, down = e_values.sign_step(start, 1), e_values.sign_step(start, -1)
    for gain, loss in zip(up, down, strict=True):
        assert (math.exp(gain) + math.exp(loss)) / 2 == pytest.approx(1.0)
    assert e_values.sign_step(start, 0) == start


def test_thinning_is_fair_and_repeatable() -> None:
    """Equal rates with unequal n: no side is favoured, and a seed gives the same sign."""
    generator = np.random.default_rng(7)
    signs = []
    for tick in range(4000):
        ours = (int(generator.binomial(10, 0.1)), 10)
        theirs = (int(generator.binomial(190, 0.1)), 190)
        sign = e_values.thinned_sign(ours, theirs, (1, tick))
        assert sign == e_values.thinned_sign(ours, theirs, (1, tick))
        signs.append(sign)
    assert abs(np.mean(signs)) < 0.05


def test_an_empty_side_says_nothing() -> None:
    assert e_values.thinned_sign((0, 0), (5, 10), (1,)) == 0
    assert e_values.thinned_sign((5, 10), (0, 0), (1,)) == 0


def test_all_bad_against_none_bad() -> None:
    assert e_values.thinned_sign((10, 10), (0, 190), (1,)) == 1
    assert e_values.thinned_sign((0, 10), (190, 190), (1,)) == -1
