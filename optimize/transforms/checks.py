"""Proving what serving takes for granted: a transform is pure, and its rows do not meet.

A function that alters its argument or remembers earlier rows would answer otherwise in
production than in the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from services.runtime.transform import TransformError, TransformStep

Tensors = Mapping[str, np.ndarray]
Runner = Callable[[Tensors], dict[str, np.ndarray]]

SAMPLE_ROWS = 7

# As for the model itself, whose rounding depends on how many rows are computed at once.
_ABSOLUTE = 1e-6
_RELATIVE = 1e-3


def check_pure(step: TransformStep | None, arrays: Tensors) -> None:
    """TransformError if a function alters its argument, or answers twice in different ways."""
    if step is None:
        return
    given = {name: array.copy() for name, array in arrays.items()}
    first = {name: array.copy() for name, array in step.call(given).items()}
    for name, array in arrays.items():
        if not _same(array, given[name]):
            raise TransformError(f"{step.name} alters its argument {name!r}; let it work on a copy")
    second = step.run(arrays)
    for name, array in first.items():
        if not _same(array, second[name]):
            raise TransformError(
                f"{step.name} gives another {name!r} for the same rows when it is called again; "
                "it must use no random numbers, no clock and nothing that it remembers"
            )


def rows_are_independent(run: Runner, sample: Tensors) -> bool:
    """Whether run(a ++ b) = run(a) ++ run(b) for the rows of `sample`, each taken alone."""
    joined = run(sample)
    rows = len(next(iter(sample.values())))
    single = ({name: array[row : row + 1] for name, array in sample.items()} for row in range(rows))
    alone = [run(one) for one in single]
    return all(
        _close(array[row : row + 1], part[name])
        for name, array in joined.items()
        for row, part in enumerate(alone)
    )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal to the bit, so that NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind != "f" or one.shape != other.shape:
        return _same(one, other)
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    limit = _ABSOLUTE + _RELATIVE * scale
    return bool(np.allclose(one, other, rtol=0.0, atol=limit, equal_nan=True))
