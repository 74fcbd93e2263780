"""Outlier rows: values outside the data, to test whether rows of a batch affect each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlctl.optimize.data import Rows, Tensors, row_bytes

SAMPLE_ROWS = 7
_SCANNED = 256

# Far outside the data, yet within float16 for data of usual size.
_EXTREME = 1e3


def distinct(rows: Rows) -> np.ndarray:
    """Return the indices of SAMPLE_ROWS rows that differ, repeated if there are too few."""
    first: dict[bytes, int] = {}
    for row in range(min(rows.count, _SCANNED)):
        key = b"".join(row_bytes(array[row]) for array in rows.inputs.values())
        first.setdefault(key, row)
    return np.resize(list(first.values())[:SAMPLE_ROWS], SAMPLE_ROWS)


def outlier_batches(batch: Tensors, data: Tensors) -> Iterator[Tensors]:
    """Yield batches with the names, types and shapes of `batch` and values unlike the data's.

    Zeros, the smallest and the largest values in `data` and, for floats, values a thousand
    times beyond them with either sign.
    """
    yield {
        name: array if array.dtype == object else np.zeros_like(array)
        for name, array in batch.items()
    }
    for extreme in (np.fmin, np.fmax):  # without NaN
        yield {name: _filled(array, extreme, data[name]) for name, array in batch.items()}
    for sign in (-1, 1):
        yield {name: _beyond(array, sign) for name, array in batch.items()}


def _filled(array: np.ndarray, extreme: np.ufunc, data: np.ndarray) -> np.ndarray:
    """Return an array like `array` with the extreme values of `data`, column by column."""
    filled = np.empty_like(array)  # text stays object: a fixed width would cut other rows off
    filled[:] = extreme.reduce(data, axis=0)
    return filled


def _beyond(array: np.ndarray, sign: int) -> np.ndarray:
    """Return values far outside the data for floats; integers may be indices and stay."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    largest = float(np.nanmax(np.abs(array), initial=0.0))
    limit = float(np.finfo(array.dtype).max)
    return np.full_like(array, sign * min(limit, _EXTREME * (1.0 + largest)))
