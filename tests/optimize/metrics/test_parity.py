from __future__ import annotations

import numpy as np
import pytest

from optimize.metrics.parity import agreement, centred_cosine, compare

WANT = {"y": np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)}


def test_equal_answers_have_no_distance() -> None:
    parity = compare(WANT, WANT)
    assert (parity.max_abs_error, parity.relative_l2) == (0.0, 0.0)
    assert parity.centred_cosine == pytest.approx(1.0)
    assert parity.agreement == 1.0


def test_the_worst_output_counts() -> None:
    want = {"a": np.ones((2, 1)), "b": np.array([[3.0], [4.0]])}
    found = {"a": np.ones((2, 1)), "b": np.array([[3.0], [1.0]])}
    parity = compare(want, found)
    assert parity.max_abs_error == 3.0
    assert parity.relative_l2 == pytest.approx(3.0 / 5.0)
    assert parity.agreement is None


def test_a_constant_part_does_not_hide_a_difference() -> None:
    want = np.array([[1000.0, 1.0], [1000.0, -1.0]])
    plain = np.ravel(want) @ np.ravel(-want) / np.sum(want**2)
    flipped = want * [1.0, -1.0]
    assert plain < 0
    assert np.ravel(want) @ np.ravel(flipped) / np.sum(want**2) > 0.999
    assert centred_cosine(want, flipped) == pytest.approx(-1.0)


def test_outputs_that_do_not_vary() -> None:
    constant = np.ones((3, 2))
    assert centred_cosine(constant, constant) == 1.0
    assert centred_cosine(constant, np.arange(6.0).reshape(3, 2)) == 0.0


def test_an_embedding_has_no_classes_and_a_sure_classifier_has() -> None:
    unit = np.array([[0.6, -0.8], [1.0, 0.0], [0.0, -1.0]])
    assert agreement(unit, unit) is None
    assert agreement(unit * 2, unit * 2) == 1.0
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert agreement(sure, sure) == 1.0


def test_agreement_is_a_share_of_rows() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
    assert agreement(scores, scores[::-1]) == 0.0
    assert agreement(scores, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])) == 0.75
    assert agreement(scores[:, :1], scores[:, :1]) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "'y' is missing"),
        ({"y": np.zeros((2, 3))}, r"has shape \[2, 3\], expected \[2, 2\]"),
        ({"y": np.array([[1.0, np.nan], [0.0, 2.0]])}, "NaN"),
        ({"y": np.array([[1.0, np.inf], [0.0, 2.0]])}, "infinite"),
    ],
)
def test_answers_of_another_form_are_refused(found: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compare(WANT, found)
