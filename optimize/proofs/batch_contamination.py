"""Measure how much other rows of a batch change a variant's answers.

A source model may have independent rows while a variant of it does not: dynamic quantization
takes one activation scale for the whole batch, so one outlier row costs the other rows
their precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.parity import compare, finite
from mlctl.optimize.proofs.outlier_rows import SAMPLE_ROWS, distinct, outlier_batches

# The sample and one outlier: an engine must be built for at least this batch size.
MAX_ROWS = SAMPLE_ROWS + 1

# Rounding differs between batches; up to twice the variant's own error is not contamination.
_SLACK = 2.0

# Below this relative L2, a difference comes from other kernels at another batch size.
_NOISE = 1e-3

# Stands for the error of answers that are NaN or infinite: larger than any other.
_BROKEN = 1e9

Run = Callable[[Tensors], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Contamination:
    """Relative L2 of sample rows to the source's answers, without and with an outlier in the batch.

    `with_outlier` is the worst of all outliers; 1e9 if an answer is not finite.
    """

    alone: float
    with_outlier: float

    def harmless(self, expected: float) -> bool:
        """Return whether the error beside an outlier is explained by the `expected` error."""
        return self.with_outlier <= max(_SLACK * max(self.alone, expected), _NOISE)


def measure_contamination(run: Run, rows: Rows, answers: Tensors) -> Contamination:
    """Run a sample of `rows`, whose `answers` are the source's, with and without outlier rows."""
    index = distinct(rows)
    inputs = rows.take(index).inputs
    expected = {name: array[index] for name, array in answers.items()}
    alone = _error(expected, run(inputs))
    errors = (_error(expected, found) for found in _with_outliers(run, inputs, rows.inputs))
    return Contamination(alone, max(errors, default=alone))


def _with_outliers(run: Run, inputs: Tensors, data: Tensors) -> Iterator[Tensors]:
    """Yield the answers to `inputs`, each time with one outlier row appended to the batch.

    An outlier that the runtime rejects is skipped: a request with it fails on its own.
    """
    first = {name: array[:1] for name, array in inputs.items()}
    for outlier in outlier_batches(first, data):
        batch = {name: np.concatenate([array, outlier[name]]) for name, array in inputs.items()}
        try:
            found = run(batch)
        except Exception:  # noqa: BLE001, S112 - runtimes have no common exception
            continue
        yield {name: array[:-1] for name, array in found.items()}


def _error(expected: Tensors, found: Tensors) -> float:
    return compare(expected, found).relative_l2 if finite(found) else _BROKEN
