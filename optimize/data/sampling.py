"""Which rows calibrate and which judge: stratified by label, from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from optimize.data.rows import Rows

MIN_ROWS = 8
SEED = 20_240_229

# Of few rows most are kept to judge: calibration needs ranges, a verdict needs numbers.
_CALIBRATION_SHARE = 4


@dataclass(frozen=True, slots=True)
class RowLimits:
    """How many rows to take at most for each purpose. INVALID_INPUT unless positive."""

    calibration_rows: int = 256
    held_out_rows: int = 1000
    seed: int = SEED

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "seed" else 1
            if (value := getattr(self, field.name)) < least:
                message = f"{field.name} = {value} is out of range: give {least} or more"
                raise MlctlError(ErrorCode.INVALID_INPUT, message)


def choose_rows(
    rows: int, labels: np.ndarray | None, sampling: RowLimits
) -> tuple[np.ndarray, np.ndarray]:
    """The row numbers for calibration (a quarter of all at most) and, disjoint, for judging.

    Both are in an order in which any first part holds each class in proportion;
    labels that are quantities (floats) are not stratified.
    """
    order = np.random.default_rng(sampling.seed).permutation(rows)
    if labels is not None and np.issubdtype(labels.dtype, np.integer):
        order = order[_interleaved(labels[order])]
    first = min(sampling.calibration_rows, rows // _CALIBRATION_SHARE)
    return order[:first], order[first : first + sampling.held_out_rows]


def split(rows: Rows, sampling: RowLimits | None = None) -> tuple[Rows, Rows]:
    """Calibration rows and held-out rows out of rows in memory, as `choose_rows` says."""
    first, second = choose_rows(rows.count, rows.labels, sampling or RowLimits())
    return rows.take(first), rows.take(second)


def _interleaved(labels: np.ndarray) -> np.ndarray:
    """An order in which any prefix holds each label in proportion to its frequency.

    The k-th of n rows of a label is placed at (k + 1/2) / n of the way.
    """
    by_label = np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(labels))
    place[by_label] = (np.arange(len(labels)) - starts + 0.5) / np.repeat(counts, counts)
    return np.argsort(place, kind="stable")
