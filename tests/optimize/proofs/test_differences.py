"""Which differences rounding explains, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.proofs.differences import differing_rows
from mlctl.optimize.proofs.given_rows import check_given_rows, graph_fails
from mlctl.services.model.run_errors import RunError

SCORES = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])


def rows(expected: np.ndarray, found: np.ndarray) -> list[bool]:
    differs: list[bool] = differing_rows({"y": expected}, {"y": found})["y"].tolist()
    return differs


@pytest.mark.parametrize(
    ("value", "change", "differs"),
    [
        pytest.param(10.0, 0.009, False, id="within 1e-3 of the row"),
        pytest.param(10.0, 0.013, True, id="beyond it"),
        pytest.param(0.0, 0.0009, False, id="within 1e-5 of the tensor"),
        pytest.param(0.0, 0.002, True, id="a row near zero beside large ones"),
        pytest.param(np.nan, 0.0, False, id="NaN is NaN"),
    ],
)
def test_differing_rows__one_value_each__is_judged_by_its_own_size(
    value: float, change: float, differs: bool
) -> None:
    expected = np.array([100.0, value, -100.0])
    assert rows(expected, expected + np.array([0.0, change, 0.0])) == [False, differs, False]


@pytest.mark.parametrize("values", [1, 5, 1 << 20])
def test_differing_rows__a_few_rows_at_a_time__sees_the_sizes_in_all(
    monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    monkeypatch.setattr("mlctl.optimize.data.rows._SLICE_VALUES", values)
    expected = np.array([[1.0, 1e-3], [1.0, 1e-3], [1.0, 1000.0]])
    found = expected + np.array([[0.0, 0.015], [0.0, 0.0], [0.0, 0.0]])
    assert rows(expected, found) == [True, False, False]
    assert rows(expected, expected + 0.9e-2) == [False, False, False]


def test_differing_rows__a_number_for_nan__differs() -> None:
    assert rows(np.array([1.0, np.nan]), np.array([np.nan, 1.0])) == [True, True]


def test_differing_rows__columns_of_unlike_size__are_judged_by_the_smaller() -> None:
    expected = np.array([[1e4, 1.0], [1e4, 1.0]])
    assert rows(expected, expected + np.array([[5.0, 0.0], [0.0, 0.5]])) == [False, True]


def test_differing_rows__labels__are_equal_but_where_scores_tie() -> None:
    labels = np.array([0, 0, 1])
    expected = {"probabilities": SCORES, "label": labels}
    found = {"probabilities": SCORES, "label": np.array([1, 1, 1])}
    assert differing_rows(expected, found)["label"].tolist() == [True, False, False]
    text = np.array([b"a", b"b"], object)
    assert rows(text, np.array([b"a", b"c"], object)) == [False, True]


def test_graph_fails__error_of_the_runtime__is_an_export_that_failed() -> None:
    error = graph_fails(RunError("Out of range value in index tensor"))
    assert error.code is ErrorCode.EXPORT_FAILED
    assert error.message.endswith("that the model takes: Out of range value in index tensor")


def test_check_given_rows__differences__names_output_rows_answers_and_the_gap() -> None:
    age = np.array([1.0, np.nan, 3.0, np.nan])
    inputs = {"age": age, "city": np.array([b"", b"", b"Rome", b"Rome"], object)}
    expected = {"prediction": np.array([1.0, 2.0, 3.0, 4.0])}
    found = {"prediction": np.array([1.0, 2.5, 3.0, 4.5])}
    with pytest.raises(MlctlError) as caught:
        check_given_rows(inputs, expected, found, None)
    assert caught.value.code is ErrorCode.EXPORT_FAILED
    assert (
        "output 'prediction' differs from the source model's on 2 of 4 rows of the data (1, 3; "
        "row 1: wanted 2., got 2.5); none of them has a value in 'age'"
    ) in caught.value.message
    check_given_rows(inputs, expected, found, np.array([False, True, False, True]))
    with pytest.raises(MlctlError, match="on 1 of 4 rows"):
        check_given_rows(inputs, expected, found, np.array([False, True, False, False]))
