"""Properties of the split, of parity and of the choice, for any numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlctl.optimize.data import RowLimits
from mlctl.optimize.data.rows import choose_rows
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.variants.choice import choose
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.optimize.variants.variant import Variant
from tests.optimize.builders import failed, variant

numbers = st.floats(min_value=0.001, max_value=100.0)
goals = st.builds(
    Goals,
    max_accuracy_drop=st.floats(0.0, 0.2),
    max_p95_ms=st.none() | numbers,
    max_size_mb=st.none() | st.floats(0.0001, 2.0),
    prefer=st.sampled_from(Prefer),
)


@st.composite
def variants(draw: st.DrawFn) -> list[Variant]:
    def one(recipe: str) -> Variant:
        if draw(st.booleans()) and draw(st.booleans()):
            return failed(recipe)
        return variant(
            recipe,
            drop=draw(st.none() | st.floats(-0.1, 0.3)),
            bound=draw(st.floats(0.0, 0.1)),
            ms=draw(numbers),
            spread=draw(st.floats(0.0, 5.0)),
            batch_ms=draw(numbers),
            size=draw(st.integers(1, 3_000_000)),
            cosine=draw(st.floats(0.9, 1.0)),
            agreement=draw(st.none() | st.floats(0.9, 1.0)),
        )

    return [one(f"r{number}") for number in range(draw(st.integers(1, 5)))]


@given(variants(), goals)
def test_choose__any_variants__at_most_one_and_it_passes(
    found: list[Variant], wanted: Goals
) -> None:
    judged = choose(found, wanted)
    assert [item.variant for item in judged] == found
    winners = [item for item in judged if item.chosen]
    assert len(winners) == any(item.passed for item in judged)
    for item in judged:
        assert item.reason
        measured = item.variant.measured
        if item.passed:
            assert measured is not None
            assert wanted.max_p95_ms is None or measured.p95_ms <= wanted.max_p95_ms
            score = measured.score
            assert score is None or score.drop.high <= wanted.accuracy_drop


@given(variants(), goals)
def test_choose__variants_in_another_order__has_the_same_verdicts(
    found: list[Variant], wanted: Goals
) -> None:
    passed = {item.variant.recipe: item.passed for item in choose(found, wanted)}
    assert {item.variant.recipe: item.passed for item in choose(found[::-1], wanted)} == passed


@given(variants(), goals)
def test_choose__prefer_size__is_the_smallest_that_passes(
    found: list[Variant], wanted: Goals
) -> None:
    judged = choose(found, replace(wanted, prefer=Prefer.SIZE))
    winner = next((item for item in judged if item.chosen), None)
    if winner is None:
        return
    assert winner.variant.measured is not None
    sizes = [
        item.variant.measured.size_bytes
        for item in judged
        if item.passed and item.variant.measured is not None
    ]
    assert winner.variant.measured.size_bytes == min(sizes)


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 4)),
        elements=st.floats(-9, 9, width=32),
    ),
    st.floats(-1.0, 1.0),
)
def test_compare__shifted_outputs__distances_are_in_range(want: np.ndarray, shift: float) -> None:
    same = compare({"y": want}, {"y": want})
    assert (same.max_abs_error, same.relative_l2) == (0.0, 0.0)
    moved = compare({"y": want}, {"y": want.astype(np.float64) + shift})
    assert moved.max_abs_error == pytest.approx(abs(shift), abs=1e-6)
    assert -1.0 <= moved.centred_cosine <= 1.0
    assert moved.agreement is None or 0.0 <= moved.agreement <= 1.0


@given(st.lists(st.integers(0, 3), min_size=8, max_size=200))
def test_split__any_labels__has_each_row_once_in_proportion(labels: list[int]) -> None:
    found = np.array(labels)
    calibration, held_out = choose_rows(len(labels), found, RowLimits())
    assert sorted([*calibration, *held_out]) == list(range(len(labels)))
    assert len(calibration) == len(labels) // 4
    for label, total in zip(*np.unique(labels, return_counts=True), strict=True):
        assert abs(int(np.sum(found[calibration] == label)) - total / 4) <= 2.5
