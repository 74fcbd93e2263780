"""Whether the rows of a batch leave each other alone: only then may requests be joined.

f(a ++ b) = f(a) ++ f(b) is easily true by accident, on rows that are alike or that
influence each other by little. So the neighbours of a row are also replaced by rows
that no data set has, at the same batch size and place: there a row's answer must stay
what it was to the last digits, because nothing else in the computation changed.
"""

from __future__ import annotations

import numpy as np

from bundle.errors import MlctlError
from optimize.data import Rows, Tensors
from optimize.proofs.checks import close
from optimize.proofs.outlier_rows import distinct, outlier_batches
from optimize.proofs.reference import Reference

# The same kernels run on the same shapes; only summing in another order may differ.
_SAME = 1e-6


def is_row_independent(reference: Reference, rows: Rows) -> bool:
    """Whether an answer depends on its own row only, for the source model.

    Rows are compared joined, alone and in reverse order, and next to neighbours of zeros,
    of the smallest and the largest values in the data and, for floats, of ones a thousand
    times beyond. Neighbours that the model refuses to compute prove nothing and are left out.
    """
    sample = rows.take(distinct(rows))
    return _same_alone_and_reordered(reference, sample) and _ignores_outliers(
        reference, sample, rows
    )


def _same_alone_and_reordered(reference: Reference, sample: Rows) -> bool:
    joined = reference.run(sample.inputs)
    reverse = np.arange(sample.count)[::-1]
    turned = reference.run(sample.take(reverse).inputs)
    alone = [reference.run(sample.take(np.array([row])).inputs) for row in range(sample.count)]
    return all(
        close(array, turned[name][reverse])
        and close(array, np.concatenate([outputs[name] for outputs in alone]))
        for name, array in joined.items()
    )


def _ignores_outliers(reference: Reference, sample: Rows, rows: Rows) -> bool:
    """Compare the first and the last row of a batch, where a running sum would show."""
    before = sample.head(3).inputs
    answers = reference.run(before)
    for others in outlier_batches(before, rows.inputs):
        for place in (0, -1):
            after = _answers(reference, _replace_others(before, others, place))
            if after is not None and not _unchanged(answers, after, place):
                return False
    return True


def _replace_others(batch: Tensors, others: Tensors, place: int) -> dict[str, np.ndarray]:
    replaced = {}
    for name, array in batch.items():
        replaced[name] = np.array(others[name])
        replaced[name][place] = array[place]
    return replaced


def _answers(reference: Reference, inputs: Tensors) -> Tensors | None:
    """None where the model raises on these values: that says nothing about rows."""
    try:
        return reference.run(inputs)
    except MlctlError:
        return None


def _unchanged(before: Tensors, after: Tensors, place: int) -> bool:
    for name, array in before.items():
        want, have = array[place], after[name][place]
        if not np.issubdtype(array.dtype, np.floating):
            if not np.array_equal(want, have):
                return False
            continue
        allowed = _SAME * float(np.abs(want).max(initial=0.0))
        if not np.allclose(have, want, rtol=0.0, atol=allowed):
            return False
    return True
