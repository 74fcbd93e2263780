"""Evaluation rows as values, and the choice of rows that calibrate and rows that judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError

Tensors = Mapping[str, np.ndarray]

MIN_ROWS = 8
SEED = 20_240_229

# At most one row in four calibrates: calibration needs ranges, a verdict needs numbers.
_CALIBRATION_SHARE = 4

# Of an array that is compared in float64, with several copies of each slice.
_SLICE_VALUES = 1 << 20


def row_count(tensors: Tensors) -> int:
    """Return the first dimension of the first tensor."""
    return len(next(iter(tensors.values())))


def row_bytes(row: np.ndarray) -> bytes:
    """Return the content of one row of a tensor, to compare or to hash."""
    array = np.asarray(row)
    # Text has no buffer, and two texts are not one longer text.
    return repr(array.tolist()).encode() if array.dtype.kind in "OS" else array.tobytes()


def row_slices(array: np.ndarray) -> Iterator[slice]:
    """Yield consecutive slices of the rows, each of a few megabytes."""
    count = max(1, _SLICE_VALUES * len(array) // max(1, array.size))
    for start in range(0, len(array), count):
        yield slice(start, start + count)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of every input [rows, ...], with their labels if there are any.

    Labels are class numbers, int64 [rows], or quantities, float64 [rows] or [rows, k].
    """

    inputs: Tensors
    labels: np.ndarray | None

    @property
    def count(self) -> int:
        return row_count(self.inputs)

    def take(self, index: np.ndarray | slice) -> Rows:
        """Return the rows at `index`, in that order."""
        labels = None if self.labels is None else self.labels[index]
        return Rows({name: array[index] for name, array in self.inputs.items()}, labels)

    def head(self, count: int) -> Rows:
        """Return the first `count` rows, or all if there are fewer."""
        return self.take(np.arange(min(count, self.count)))


@dataclass(frozen=True, slots=True)
class EvalData:
    """Calibration rows and held-out rows, chosen from the `rows` of the source.

    `sha256` (hex) covers all content and how it was sampled: equal digests mean equal
    rows, whatever form they were stored in.
    """

    calibration: Rows
    held_out: Rows
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The maximum number of rows for each purpose. INVALID_INPUT unless positive."""

    calibration_rows: int = 256
    held_out_rows: int = 1000
    seed: int = SEED

    def __post_init__(self) -> None:
        for field in fields(self):
            minimum = 0 if field.name == "seed" else 1
            if (value := getattr(self, field.name)) < minimum:
                message = f"{field.name} = {value} is out of range: give {minimum} or more"
                raise MlctlError(ErrorCode.INVALID_INPUT, message)


def choose_rows(
    rows: int, labels: np.ndarray | None, sampling: RowLimits
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers for calibration (at most a quarter) and, disjoint, for judging.

    Both are in an order in which any prefix holds each class in proportion; labels that are
    quantities (floats) are not stratified.
    """
    order = np.random.default_rng(sampling.seed).permutation(rows)
    if labels is not None and np.issubdtype(labels.dtype, np.integer):
        order = order[_interleaved(labels[order])]
    first = min(sampling.calibration_rows, rows // _CALIBRATION_SHARE)
    return order[:first], order[first : first + sampling.held_out_rows]


def _interleaved(labels: np.ndarray) -> np.ndarray:
    """Return an order in which any prefix holds each label in proportion to its frequency.

    The k-th of n rows of a label is placed at (k + 1/2) / n of the way.
    """
    by_label = np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    position = np.empty(len(labels))
    position[by_label] = (np.arange(len(labels)) - starts + 0.5) / np.repeat(counts, counts)
    return np.argsort(position, kind="stable")
