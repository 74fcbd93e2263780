"""Rows that no data set has, to put beside a row: its answer must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimize.data import Rows, Tensors

ROWS = 7
_SCANNED = 256

# Far outside of what was seen, and far inside of what float16 holds for usual data.
_EXTREME = 1e3


def distinct(rows: Rows) -> np.ndarray:
    """The numbers of 7 rows that differ from each other, repeated if there are too few."""
    first: dict[bytes, int] = {}
    for row in range(min(rows.count, _SCANNED)):
        key = b"".join(array[row].tobytes() for array in rows.inputs.values())
        first.setdefault(key, row)
    return np.resize(list(first.values())[:ROWS], ROWS)


def strangers(batch: Tensors, data: Tensors) -> Iterator[Tensors]:
    """Batches in the form of `batch`, with values unlike those of the data.

    Zeros, the smallest and the largest values in the data and, for floats, ones a
    thousand times beyond, of either sign.
    """
    yield {
        name: array if array.dtype == object else np.zeros_like(array)
        for name, array in batch.items()
    }
    for extreme in (np.min, np.max):
        yield {
            name: np.broadcast_to(extreme(data[name], axis=0), array.shape)
            for name, array in batch.items()
        }
    for sign in (-1, 1):
        yield {name: _beyond(array, sign) for name, array in batch.items()}


def _beyond(array: np.ndarray, sign: int) -> np.ndarray:
    """Far outside of the data for floats; whole numbers may be indices and stay as they are."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    largest = float(np.abs(array).max(initial=0.0))
    limit = float(np.finfo(array.dtype).max)
    return np.full_like(array, sign * min(limit, _EXTREME * (1.0 + largest)))
