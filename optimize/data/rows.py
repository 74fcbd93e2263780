"""The values that evaluation data is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Tensors = Mapping[str, np.ndarray]


def row_count(tensors: Tensors) -> int:
    """The first dimension of the first tensor."""
    return len(next(iter(tensors.values())))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of every input, first dimension the row, with their labels if there are any.

    Labels are class numbers, int64 [rows], or quantities, float64 [rows] or [rows, k].
    """

    inputs: Tensors
    labels: np.ndarray | None

    @property
    def count(self) -> int:
        return row_count(self.inputs)

    def take(self, index: np.ndarray | slice) -> Rows:
        """The rows at `index`, in that order."""
        labels = None if self.labels is None else self.labels[index]
        return Rows({name: array[index] for name, array in self.inputs.items()}, labels)

    def head(self, count: int) -> Rows:
        """The first `count` rows, or all if there are fewer."""
        return self.take(np.arange(min(count, self.count)))


@dataclass(frozen=True, slots=True)
class EvalData:
    """Calibration rows and held-out rows, chosen from the `rows` that the source has.

    `sha256` (hex) names all the content that was read and how it was sampled: equal
    digests mean equal rows, whatever the form they were stored in.
    """

    calibration: Rows
    held_out: Rows
    sha256: str
    rows: int
