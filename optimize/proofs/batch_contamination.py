"""What a variant makes of a row's answer next to rows that no data set has.

A source model may leave its rows alone and a variant of it may not: where the scale of
an activation is that of the whole batch, one row far from the others takes their digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from optimize.data import Rows, Tensors
from optimize.metrics.parity import compare, finite
from optimize.proofs.outlier_rows import ROWS, distinct, strangers

# Those rows and one stranger: what an engine that is asked must have room for.
MOST_ROWS = ROWS + 1

# Other neighbours round the answers otherwise; twice the error is still that error.
_SLACK = 2.0

# So little is no one's error: other kernels run for other batch sizes.
_NOISE = 1e-3

# The error of answers that are no finite numbers: more than any other.
_BROKEN = 1e9

Run = Callable[[Tensors], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Company:
    """Relative L2 of a few rows from the source's answers: by themselves, and next to the
    strange row that does the most harm; 1e9 if an answer is no finite number there."""

    alone: float
    joined: float

    def harmless(self, stated: float) -> bool:
        """Whether the error next to a strange row is still the one that is `stated`."""
        return self.joined <= max(_SLACK * max(self.alone, stated), _NOISE)


def keep_company(run: Run, rows: Rows, answers: Tensors) -> Company:
    """Run some of `rows`, whose answers by the source are `answers`, next to strange rows."""
    index = distinct(rows)
    inputs = rows.take(index).inputs
    wanted = {name: array[index] for name, array in answers.items()}
    alone = _error(wanted, run(inputs))
    joined = (_error(wanted, found) for found in _beside_strangers(run, inputs, rows.inputs))
    return Company(alone, max(joined, default=alone))


def _beside_strangers(run: Run, inputs: Tensors, data: Tensors) -> Iterator[Tensors]:
    """The answers to `inputs`, each time joined with one more row.

    A row that the runtime refuses is left out: a request with it fails by itself.
    """
    first = {name: array[:1] for name, array in inputs.items()}
    for stranger in strangers(first, data):
        joined = {name: np.concatenate([array, stranger[name]]) for name, array in inputs.items()}
        try:
            found = run(joined)
        except Exception:  # noqa: BLE001, S112 - whatever the runtime raises
            continue
        yield {name: array[:-1] for name, array in found.items()}


def _error(wanted: Tensors, found: Tensors) -> float:
    return compare(wanted, found).relative_l2 if finite(found) else _BROKEN
