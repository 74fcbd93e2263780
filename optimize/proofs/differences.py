"""Which rows of a graph's answers differ from its source's by more than rounding. Pure."""

from __future__ import annotations

import numpy as np

from mlctl.optimize.data import Tensors
from mlctl.optimize.data.rows import row_slices

_ABSOLUTE = 1e-6
# Of the largest value of its row, or of its column if that is smaller.
_OF_ROW = 1e-3
# Of the largest value of all: the terms of a sum may be larger than the sum.
_OF_TENSOR = 1e-5


def differing_rows(expected: Tensors, found: Tensors) -> dict[str, np.ndarray]:
    """Return for each output which rows differ, bool [rows]; both have the same names and shapes.

    NaN equals NaN. Labels (integers, text) must be equal, but not where the float outputs of the
    same row have two highest scores that differ by rounding only: either is right.
    """
    scores = [array for array in expected.values() if array.dtype.kind == "f"]
    tied = np.zeros(len(next(iter(expected.values()))), bool)
    for array in scores:
        tied |= _has_tie(array)
    return {
        name: _beyond_rounding(array, found[name])
        if array.dtype.kind == "f"
        else _rows(array != found[name]) & ~tied
        for name, array in expected.items()
    }


def describe_difference(expected: Tensors, found: Tensors, output: str, row: int) -> str:
    """Return both answers of one row in words, shortened."""
    return f"wanted {_short(expected[output][row])}, got {_short(found[output][row])}"


def _beyond_rounding(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    if expected.shape != found.shape:
        return np.ones(len(expected), bool)
    columns = tuple(range(max(expected.ndim - 1, 1)))
    sizes = [
        _sizes(expected[part]).max(axis=columns, initial=0.0, keepdims=True)
        for part in row_slices(expected)
    ]
    of_column = np.max(sizes, axis=0, initial=0.0)
    parts = [
        _rows(~_is_close(expected[part], found[part], of_column)) for part in row_slices(expected)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def _is_close(expected: np.ndarray, found: np.ndarray, of_column: np.ndarray) -> np.ndarray:
    """Return which values differ by no more than rounding explains.

    `of_column` is the largest size in each column of all rows.
    """
    of_row = _sizes(expected).max(axis=tuple(range(1, expected.ndim)), initial=0.0, keepdims=True)
    precision = float(np.finfo(expected.dtype).eps)
    of_tensor = max(_OF_TENSOR, precision) * float(of_column.max(initial=0.0))
    allowed = _ABSOLUTE + _OF_ROW * np.minimum(of_row, of_column) + of_tensor
    return np.asarray(np.isclose(found, expected, rtol=0.0, atol=allowed, equal_nan=True))


def _sizes(values: np.ndarray) -> np.ndarray:
    return np.abs(np.where(np.isfinite(values), values, 0)).astype(np.float64)


def _has_tie(scores: np.ndarray) -> np.ndarray:
    """Return which rows of [rows, classes] have two highest values within rounding."""
    if scores.ndim != 2 or scores.shape[1] < 2:
        return np.zeros(len(scores), bool)
    highest = np.sort(scores, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):  # two infinities are no tie
        distance = highest[:, 1] - highest[:, 0]
    return np.asarray(distance <= 2 * _OF_TENSOR * np.abs(highest[:, 1]))


def _rows(differs: np.ndarray) -> np.ndarray:
    return np.asarray(np.asarray(differs).reshape(len(differs), -1).any(axis=1))


def _short(value: np.ndarray) -> str:
    text = np.array2string(np.asarray(value), precision=6, threshold=4, edgeitems=2)
    return " ".join(text.split())[:80]
