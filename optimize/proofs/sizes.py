"""Inputs at other sizes than the data's, to find sizes that an export has fixed.

The rows of a data set all have one length, so an export that fixed that length would
pass every comparison on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Signature
from mlctl.optimize.data import Tensors


@dataclass(frozen=True, slots=True)
class Resized:
    """`inputs` with some dynamic dimensions at another size.

    A group is all dimensions after the first with the same size in the data, such as ids
    and their mask; `groups` are those sizes, `words` names the old and new ones.
    """

    inputs: Tensors
    groups: frozenset[int]
    words: str


def resized(signature: Signature, inputs: Tensors) -> list[Resized]:
    """Return the inputs at size - 1, + 1, / 2 and * 2, per group and for all together.

    Values are cut off or repeated, so they stay in the range of the data. Empty if
    only the number of rows is dynamic.
    """
    axes = [
        (spec.name, axis)
        for spec in signature.inputs
        for axis, size in enumerate(spec.shape)
        if size == DYNAMIC and axis > 0
    ]
    sizes = sorted({inputs[name].shape[axis] for name, axis in axes})
    choices = [frozenset([size]) for size in sizes]
    if len(sizes) > 1:
        choices.append(frozenset(sizes))
    return [
        _resize(inputs, axes, {size: new[at] for size, new in _others(groups).items()})
        for groups in choices
        for at in range(4)
        if all(new[at] > 0 for new in _others(groups).values())
    ]


def _others(groups: frozenset[int]) -> dict[int, tuple[int, int, int, int]]:
    return {size: (size - 1, size + 1, size // 2, size * 2) for size in groups}


def _resize(inputs: Tensors, axes: list[tuple[str, int]], sizes: dict[int, int]) -> Resized:
    changed = dict(inputs)
    for name, axis in axes:
        before = inputs[name].shape[axis]
        if before in sizes:
            index = np.arange(sizes[before]) % before
            changed[name] = np.take(changed[name], index, axis=axis)
    words = ", ".join(f"size {old} as {new}" for old, new in sorted(sizes.items()))
    return Resized(changed, frozenset(sizes), words)
