from __future__ import annotations

import math

import pytest

from mlctl.rollout.domain.statistics import e_values

LIMITS = [0.001, 0.01, 0.5, 0.99]


def test_e_value__no_evidence__is_one() -> None:
    assert e_values.log_mean(e_values.NO_EVIDENCE) == 0.0
    assert e_values.log_mean(e_values.above((0, 0), 0.01)) == 0.0


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("evidence", [e_values.above, e_values.below])
def test_e_value__one_trial_at_the_limit__is_one_in_the_mean(
    limit: float, evidence: e_values.Evidence
) -> None:
    hit, miss = evidence((1, 1), limit), evidence((0, 1), limit)
    for up, down in zip(hit, miss, strict=True):
        assert limit * math.exp(up) + (1 - limit) * math.exp(down) == pytest.approx(1.0)


@pytest.mark.parametrize("limit", LIMITS)
def test_e_value__hits__raise_above_and_lower_below(limit: float) -> None:
    assert all(log > 0 for log in e_values.above((1, 1), limit))
    assert all(log < 0 for log in e_values.below((1, 1), limit))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("evidence", [e_values.above, e_values.below])
def test_e_value__trial_is_a_share__counts_for_less_than_its_parts(
    share: float, evidence: e_values.Evidence
) -> None:
    """A request of which some rows are wrong: the mean over a random hit is never exceeded."""
    whole, hit, miss = (evidence((hits, 1), 0.2) for hits in (share, 1, 0))
    for mixed, up, down in zip(whole, hit, miss, strict=True):
        assert math.exp(mixed) < share * math.exp(up) + (1 - share) * math.exp(down)


@pytest.mark.parametrize("n", [(10, 190), (100, 100), (190, 10)])
def test_higher__one_hit_of_equal_versions__is_one_in_the_mean(n: tuple[int, int]) -> None:
    ours, theirs = e_values.higher((1, n[0]), (0, n[1])), e_values.higher((0, n[0]), (1, n[1]))
    chance = n[0] / sum(n)
    for up, down in zip(ours, theirs, strict=True):
        assert chance * math.exp(up) + (1 - chance) * math.exp(down) == pytest.approx(1.0)


def test_design_effect__burst_of_a_hundred__counts_as_one_trial() -> None:
    once, burst = e_values.above((1, 5), 0.01), e_values.above((100, 500), 0.01)
    assert e_values.log_mean(burst, 100.0) == pytest.approx(e_values.log_mean(once))
