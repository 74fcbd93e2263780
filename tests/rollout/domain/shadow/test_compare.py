from __future__ import annotations

import numpy as np
import pytest

from mlctl.rollout.domain.shadow.compare import Answer, LiveOutputs, compare, norm, statistics


def answer(**outputs: object) -> Answer:
    return {name: np.asarray(value) for name, value in outputs.items()}


def test_compare__scores__agree_by_their_top_class() -> None:
    live = answer(y=[0.1, 0.7, 0.2])
    assert compare(live, answer(y=[0.3, 0.5, 0.2]), 0.01, LiveOutputs()).agrees
    assert not compare(live, answer(y=[0.5, 0.3, 0.2]), 0.01, LiveOutputs()).agrees


def test_compare__classes_that_tie_in_live__agree_with_either() -> None:
    live = answer(y=[0.4, 0.4, 0.2])
    assert compare(live, answer(y=[0.4, 0.39, 0.21]), 0.01, LiveOutputs()).agrees
    assert compare(live, answer(y=[0.39, 0.4, 0.21]), 0.01, LiveOutputs()).agrees
    assert not compare(live, answer(y=[0.3, 0.3, 0.4]), 0.01, LiveOutputs()).agrees


def test_compare__forecast_half_as_high_again__disagrees() -> None:
    """The same hour is the highest, and yet every value is wrong."""
    generator, outputs = np.random.default_rng(1), LiveOutputs()
    day = np.sin(np.arange(24) / 24 * 2 * np.pi)
    rows = [10.0 + 3.0 * generator.normal() + day for _ in range(64)]
    for row in rows:
        outputs.add(answer(y=row))
    assert compare(answer(y=rows[0]), answer(y=rows[0] * 1.001), 0.01, outputs).agrees
    assert not compare(answer(y=rows[0]), answer(y=rows[0] * 1.5), 0.01, outputs).agrees


def test_compare__logits_of_another_scale__agree() -> None:
    generator, outputs = np.random.default_rng(1), LiveOutputs()
    rows = generator.normal(size=(64, 10))
    for row in rows:
        outputs.add(answer(y=row))
    assert compare(answer(y=rows[0]), answer(y=rows[0] * 1.5), 0.01, outputs).agrees


@pytest.mark.parametrize("value", [3, True, "cat", [1, 2, 3]])
def test_compare__equal_labels__agree(value: object) -> None:
    assert compare(answer(y=value), answer(y=value), 0.01, LiveOutputs()).agrees


@pytest.mark.parametrize(
    ("live", "ours"), [(3, 4), (True, False), ("cat", "dog"), ([1, 2], [1, 3])]
)
def test_compare__other_labels__disagree(live: object, ours: object) -> None:
    found = compare(answer(y=live), answer(y=ours), 1.0, LiveOutputs())
    assert (found.agrees, found.non_finite) == (False, False)


@pytest.mark.parametrize(("ours", "agrees"), [(100.9, True), (101.1, False)])
def test_compare__numbers__agree_within_a_share_of_their_size(ours: float, agrees: bool) -> None:
    assert compare(answer(y=100.0), answer(y=ours), 0.01, LiveOutputs()).agrees is agrees


def test_compare__numbers_near_zero__are_relative_to_the_usual_size() -> None:
    live, ours, usual = answer(y=0.0), answer(y=0.05), LiveOutputs()
    usual.add(answer(y=10.0))
    assert not compare(live, ours, 0.01, LiveOutputs()).agrees
    assert compare(live, ours, 0.01, usual).agrees


def test_compare__nested_output__is_compared_as_numbers() -> None:
    live, ours = answer(y=[[1.0, 2.0]]), answer(y=[[1.0, 2.001]])
    assert compare(live, ours, 0.01, LiveOutputs()).agrees
    assert not compare(live, answer(y=[[1.5, 2.0]]), 0.01, LiveOutputs()).agrees


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_compare__nan_where_live_is_finite__is_non_finite(bad: float) -> None:
    found = compare(answer(y=[0.1, 0.9]), answer(y=[bad, 0.9]), 0.01, LiveOutputs())
    assert (found.agrees, found.non_finite) == (False, True)


def test_compare__nan_on_both_sides__agrees() -> None:
    both = answer(y=[np.nan, 0.9])
    found = compare(both, both, 0.01, LiveOutputs())
    assert (found.agrees, found.non_finite) == (True, False)


def test_compare__finite_where_live_is_nan__disagrees_without_non_finite() -> None:
    found = compare(answer(y=np.nan), answer(y=1.0), 0.01, LiveOutputs())
    assert (found.agrees, found.non_finite) == (False, False)


def test_compare__other_shapes_or_outputs__disagree() -> None:
    assert not compare(answer(y=[1.0, 2.0]), answer(y=[1.0, 2.0, 3.0]), 0.01, LiveOutputs()).agrees
    assert not compare(answer(y=1.0), answer(z=1.0), 0.01, LiveOutputs()).agrees


def test_compare__additional_output__is_ignored() -> None:
    assert compare(answer(y=1.0), answer(y=1.0, more=np.nan), 0.01, LiveOutputs()).agrees
    assert not compare(answer(y=1.0, more=2.0), answer(y=1.0), 0.01, LiveOutputs()).agrees


def test_compare__live_is_zero__other_numbers_disagree() -> None:
    assert not compare(answer(y=0.0), answer(y=1.0), 0.01, LiveOutputs()).agrees


def test_compare__one_output_of_two_differs__disagrees() -> None:
    live, ours = answer(label=1, score=0.5), answer(label=1, score=0.9)
    assert not compare(live, ours, 0.01, LiveOutputs()).agrees


def test_statistics__each_kind_of_output__has_its_value() -> None:
    found = dict(
        statistics(answer(y=[0.1, 0.7, 0.2], label="cat", value=2.0, empty=[]), LiveOutputs())
    )
    assert found == {"y": "1", "label": "cat", "value": 2.0}
    assert dict(statistics(answer(y=[np.nan, 0.1]), LiveOutputs())) == {"y": "not finite"}


def test_norm__integers_or_nan__is_none() -> None:
    assert norm(np.asarray([3.0, 4.0])) == 5.0
    assert norm(np.asarray([3, 4])) is None
    assert norm(np.asarray([np.nan])) is None
