from __future__ import annotations

import numpy as np
import pytest

from mlctl.bundle.output_kinds import OutputKind, agreement, output_kind, same_steps, same_top_class

ROWS = 500
RANDOM = np.random.default_rng(3)
LEVELS = RANDOM.normal(20.0, 8.0, (ROWS, 1))
CORNERS = RANDOM.random((ROWS, 2))


def unit(array: np.ndarray) -> np.ndarray:
    return np.asarray(array / np.linalg.norm(array, axis=1, keepdims=True))


def softmax(array: np.ndarray) -> np.ndarray:
    powers = np.exp(array)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def last_axis_softmax(array: np.ndarray) -> np.ndarray:
    powers = np.exp(array)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", RANDOM.standard_normal((ROWS, 10)), OutputKind.CLASS_SCORES),
        ("y", RANDOM.standard_normal((ROWS, 2)), OutputKind.CLASS_SCORES),
        ("y", softmax(RANDOM.standard_normal((ROWS, 3))), OutputKind.CLASS_SCORES),
        ("logits", LEVELS + RANDOM.standard_normal((ROWS, 24)), OutputKind.CLASS_SCORES),
        ("y", LEVELS + RANDOM.standard_normal((ROWS, 24)), OutputKind.NUMBERS),
        ("boxes", np.hstack([CORNERS, CORNERS + 0.1]), OutputKind.NUMBERS),
        ("y", unit(RANDOM.standard_normal((ROWS, 8))), OutputKind.NUMBERS),
        ("y", RANDOM.standard_normal((ROWS, 1)), OutputKind.NUMBERS),
        ("y", RANDOM.standard_normal(ROWS), OutputKind.NUMBERS),
        ("y", RANDOM.standard_normal((ROWS, 4, 8)), OutputKind.NUMBERS),
        ("y", last_axis_softmax(RANDOM.random((ROWS, 5, 6))), OutputKind.CLASS_SEQUENCES),
        ("y", np.log(last_axis_softmax(RANDOM.random((9, 5, 7)))), OutputKind.CLASS_SEQUENCES),
        ("logits", RANDOM.standard_normal((9, 5, 7)), OutputKind.CLASS_SEQUENCES),
        ("hidden_scores", RANDOM.standard_normal((9, 5, 7)), OutputKind.NUMBERS),
        ("logits", RANDOM.standard_normal((9, 5, 1)), OutputKind.NUMBERS),
        ("y", np.ones((9, 3, 4, 4)), OutputKind.NUMBERS),
        ("y", np.arange(ROWS), OutputKind.LABELS),
        ("y", np.array([b"cat", b"dog"], object), OutputKind.LABELS),
        ("y", np.ones((1, 5)), OutputKind.CLASS_SCORES),
    ],
)
def test_output_kind__values_and_name__decide_it(
    name: str, array: np.ndarray, kind: OutputKind
) -> None:
    assert output_kind(name, array) is kind


def test_agreement__scores__is_the_same_top_class() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    found = agreement(OutputKind.CLASS_SCORES, scores, scores * [[0.1, 2.0]])
    assert found is not None
    assert found.tolist() == [False, True]


def test_agreement__sequences__counts_rows_whose_steps_are_all_equal() -> None:
    """A line of text is read wrongly if one of its letters is."""
    reference = np.zeros((3, 4, 5))
    reference[..., 2] = 1.0
    found = reference.copy()
    found[1, 3] = [2.0, 0.0, 0.0, 0.0, 0.0]
    agreeing = agreement(OutputKind.CLASS_SEQUENCES, reference, found)
    assert agreeing is not None
    assert agreeing.tolist() == [True, False, True]
    assert same_steps(reference, found).sum() == 11


def test_agreement__equal_scores__any_of_their_classes_agrees() -> None:
    reference = np.array([[0.5, 0.5, 0.0], [0.5, 0.4, 0.1]])
    found = reference + np.array([0.0, 1e-8, 0.0])
    third = np.array([[0.4, 0.1, 0.5], [0.4, 0.5, 0.1]])
    assert same_top_class(reference, found).tolist() == [True, True]
    assert same_top_class(reference, third).tolist() == [False, False]


def test_agreement__labels__is_equality_of_the_row() -> None:
    found = agreement(OutputKind.LABELS, np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]))
    assert found is not None
    assert found.tolist() == [True, False]


def test_agreement__numbers__is_none() -> None:
    assert agreement(OutputKind.NUMBERS, LEVELS, LEVELS) is None
