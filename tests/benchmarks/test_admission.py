from __future__ import annotations

import numpy as np

from benchmarks.admission import CoDel, NewestFirst, Policy, PredictedWait, capacity, simulate

SECONDS = 1.5


def good(policy: Policy, factor: float) -> float:
    """The share of the capacity that is answered within 100 ms."""
    arrived, answered = simulate(policy, factor, SECONDS).T
    in_time = (answered - arrived <= 0.1) & (answered <= SECONDS)
    return float(np.count_nonzero(in_time)) / SECONDS / capacity()


def test_simulate__below_the_capacity__all_policies_answer_all() -> None:
    shares = [good(policy(), 0.8) for policy in (PredictedWait, CoDel, NewestFirst)]
    assert min(shares) > 0.75
    assert max(shares) <= 0.8


def test_simulate__three_times_the_capacity__predicted_wait_answers_most() -> None:
    shares = [good(policy(), 3.0) for policy in (PredictedWait, NewestFirst, CoDel)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
