"""Prove that the rows of a batch do not affect each other: only then may requests be batched.

f(a ++ b) = f(a) ++ f(b) is easily true by accident, on rows that are similar or that
affect each other little. So the neighbours of a row are also replaced by outlier rows, at
the same batch size and position: the row's answer must then stay the same to the last
digits, because nothing else in the computation changed.
"""

from __future__ import annotations

import numpy as np

from mlctl.core.errors import MlctlError
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.rounding import close
from mlctl.optimize.proofs.outlier_rows import distinct, outlier_batches
from mlctl.optimize.proofs.reference import Reference

# The same kernels run on the same shapes; only summing in another order may differ.
_SAME = 1e-6


def is_row_independent(reference: Reference, rows: Rows) -> bool:
    """Return whether each answer of the source model depends on its own row only.

    Rows are compared in a batch, alone and in reverse order, and beside outlier rows. Outliers
    that the model rejects prove nothing and are left out.
    """
    sample = rows.take(distinct(rows))
    return _same_alone_and_reordered(reference, sample) and _ignores_outliers(
        reference, sample, rows
    )


def beside_longest(texts: Tensors) -> dict[str, np.ndarray]:
    """Return rows of text after the longest of them and its first word, which needs most padding.

    The given rows may all be as long as the model takes, and then none is padded.
    """
    found = {}
    for name, array in texts.items():
        first = array[np.arange(2) % len(array)]
        if array.dtype == object and array.ndim == 1:
            longest = max(array.tolist(), key=len)
            first = np.array([longest, (longest.split() or [longest])[0]], object)
        found[name] = np.concatenate([first, array])
    return found


def _same_alone_and_reordered(reference: Reference, sample: Rows) -> bool:
    batched = reference.run(sample.inputs)
    reverse = np.arange(sample.count)[::-1]
    turned = reference.run(sample.take(reverse).inputs)
    alone = [reference.run(sample.take(np.array([row])).inputs) for row in range(sample.count)]
    return all(
        close(array, turned[name][reverse])
        and close(array, np.concatenate([outputs[name] for outputs in alone]))
        for name, array in batched.items()
    )


def _ignores_outliers(reference: Reference, sample: Rows, rows: Rows) -> bool:
    """Compare the first and the last row of a batch, where a running sum would differ."""
    before = sample.head(3).inputs
    answers = reference.run(before)
    for others in outlier_batches(before, rows.inputs):
        for position in (0, -1):
            after = _answers(reference, _replace_others(before, others, position))
            if after is not None and not _unchanged(answers, after, position):
                return False
    return True


def _replace_others(batch: Tensors, others: Tensors, position: int) -> dict[str, np.ndarray]:
    replaced = {}
    for name, array in batch.items():
        replaced[name] = np.array(others[name])
        replaced[name][position] = array[position]
    return replaced


def _answers(reference: Reference, inputs: Tensors) -> Tensors | None:
    """Return None if the model rejects these values: that proves nothing about rows."""
    try:
        return reference.run(inputs)
    except MlctlError:
        return None


def _unchanged(before: Tensors, after: Tensors, position: int) -> bool:
    for name, array in before.items():
        expected, found = array[position], after[name][position]
        if not np.issubdtype(array.dtype, np.floating):
            if not np.array_equal(expected, found):
                return False
            continue
        allowed = _SAME * float(np.abs(expected).max(initial=0.0))
        if not np.allclose(found, expected, rtol=0.0, atol=allowed):
            return False
    return True
