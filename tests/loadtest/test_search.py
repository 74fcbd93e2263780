"""The search with formulas in place of servers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.search import Knob, Score, Values, search

THREADS = Knob("threads", (1, 2, 4, 8), 1)
ROWS = Knob("rows", (1, 4, 16, 64), 64)


def simulated(values: Values) -> Score:
    """Score more rows as faster with a higher p99, and more than four threads as slower."""
    threads, rows = min(values["threads"], 4), values["rows"]
    over = max(1.0, values["threads"] / 4)
    p99 = (2 + rows / threads) * over
    return Score(p99 <= 6.0, rows * threads / p99, p99)


def test_search__formula__finds_the_best_within_the_goal() -> None:
    found = search([THREADS, ROWS], simulated)
    every = [
        simulated({"threads": threads, "rows": rows})
        for threads, rows in itertools.product(THREADS.values, ROWS.values)
    ]
    assert found.values == {"threads": 4, "rows": 16}
    assert found.score.gain == max(score.gain for score in every if score.fits)
    assert found.complete
    assert found.trials < len(every)


def test_search__combinations__are_tried_once() -> None:
    tried = []

    def trial(values: Values) -> Score:
        tried.append(tuple(values.items()))
        return simulated(values)

    found = search([THREADS, ROWS], trial)
    assert len(tried) == len(set(tried)) == found.trials


def test_search__out_of_time__returns_the_best_so_far() -> None:
    left = iter([True, True, False])
    found = search([THREADS, ROWS], simulated, lambda: next(left))
    assert not found.complete
    assert found.trials == 3
    assert found.values == {"threads": 4, "rows": 64}  # of 1, 2 and 4 threads the nearest


def test_search__gain_within_the_noise__moves_no_knob() -> None:
    gains = {1: 100.0, 2: 102.0}
    knob = Knob("workers", (1, 2), 1)
    found = search([knob], lambda values: Score(True, gains[int(values["workers"])], 1.0))
    assert found.values == {"workers": 1}
    assert found.trials == 2


def test_knob__first_value_not_listed__is_an_error() -> None:
    with pytest.raises(ValueError, match="threads: 3 is not one"):
        Knob("threads", (1, 2), 3)


def test_score__goal__comes_before_the_gain() -> None:
    assert Score(True, 1.0, 5.0).beats(Score(False, 100.0, 7.0))
    assert not Score(False, 100.0, 7.0).beats(Score(True, 1.0, 5.0))
    assert Score(False, 1.0, 7.0).beats(Score(False, 100.0, 9.0))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.data())
def test_search__any_scores__ends_no_worse_than_it_started(
    gains: list[int], data: st.DataObject
) -> None:
    values = tuple(range(len(gains)))
    knob = Knob("k", values, data.draw(st.sampled_from(values)))
    found = search([knob], lambda at: Score(True, gains[int(at["k"])], 1.0))
    assert found.complete
    assert found.score.gain >= gains[int(knob.first)]
    assert found.trials <= len(gains)
