"""Prove what serving relies on: a transform is pure, and its rows are independent.

A function that alters its argument or remembers earlier rows would answer differently in
production than in the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mlctl.optimize.metrics.rounding import close
from mlctl.services.model.transform import TransformError, TransformStep

Tensors = Mapping[str, np.ndarray]
Runner = Callable[[Tensors], dict[str, np.ndarray]]

SAMPLE_ROWS = 7


def check_pure(step: TransformStep | None, arrays: Tensors) -> None:
    """Reject a function that alters its argument or is not deterministic; TransformError."""
    if step is None:
        return
    argument = {name: array.copy() for name, array in arrays.items()}
    first = {name: array.copy() for name, array in step.call(argument).items()}
    for name, array in arrays.items():
        if not _same(array, argument[name]):
            raise TransformError(f"{step.name} alters its argument {name!r}; let it work on a copy")
    second = step.run(arrays)
    for name, array in first.items():
        if not _same(array, second[name]):
            raise TransformError(
                f"{step.name} returns another {name!r} for the same rows when it is called again; "
                "it must use no random numbers, no clock and no state"
            )


def rows_are_independent(run: Runner, sample: Tensors) -> bool:
    """Return whether run(a ++ b) = run(a) ++ run(b) for the rows of `sample`, each alone."""
    batched = run(sample)
    rows = len(next(iter(sample.values())))
    single = ({name: array[row : row + 1] for name, array in sample.items()} for row in range(rows))
    alone = [run(one) for one in single]
    return all(
        close(array[row : row + 1], part[name])
        for name, array in batched.items()
        for row, part in enumerate(alone)
    )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal to the bit, so that NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()
