from __future__ import annotations

import numpy as np
import pytest

from mlctl.rollout.domain.statistics.bursts import Trials


def run(hits: np.ndarray, n: int = 50, seconds: float = 0.5) -> Trials:
    trials = Trials()
    for each in hits:
        trials = trials.add(float(each), n, seconds, burst=5.0, limit=0.01)
    return trials


def test_design_effect__independent_requests__is_nearly_one() -> None:
    generator = np.random.default_rng(3)
    effects = [run(generator.binomial(50, 0.02, 1200)).design_effect for _ in range(20)]
    assert 1.0 <= float(np.median(effects)) < 1.6


@pytest.mark.parametrize("begin", [0, 3, 7])
def test_design_effect__bursts_of_five_seconds__is_the_size_of_a_burst(begin: int) -> None:
    """Also where a burst lies across two blocks of five seconds."""
    hits = np.zeros(1200)
    for burst in range(4):
        first = 300 * burst + begin
        hits[first : first + 10] = 15  # of 50: 150 requests slow together
    assert 100 < run(hits).design_effect < 200


def test_design_effect__nothing_bad_or_everything__is_one() -> None:
    assert run(np.zeros(100)).design_effect == 1.0
    assert run(np.full(100, 50)).design_effect == 1.0
    assert Trials().design_effect == 1.0


def test_bad_blocks__one_burst__are_two_at_most() -> None:
    hits = np.zeros(200)
    hits[95:105] = 50
    assert run(hits).bad_blocks == 2
    hits = np.zeros(200)
    hits[100:110] = 50
    assert run(hits).bad_blocks == 1


def test_blocks__pauses_without_requests__close_no_block() -> None:
    trials = run(np.zeros(200), n=0)
    assert trials.blocks[0].closed == 0


def test_share__no_requests__is_zero() -> None:
    assert Trials().share == 0.0
    assert Trials().noise(100, 1.0) == 0.0
