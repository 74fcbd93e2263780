"""Two answers to one row: whether they agree, how far apart they are, what they are like. Pure.

A vector of scores agrees when its greatest entry is in the same place, labels (integers, truth
values, text) when they are equal, other numbers when they lie within a share of their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rollout.domain.drift import Value

_FAR = 1e9  # a greater distance says no more

# One row's outputs by name. A scalar has no dimension, a vector one; further ones are flattened
# behind leading ones, so that they are not taken for scores.
Answer = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Compared:
    """`distance` is relative to live's size; `non_finite` a NaN or infinity that live has not."""

    agrees: bool
    non_finite: bool = False
    distance: float = 0.0


def compare(
    live: Answer, candidate: Answer, tolerance: float, sizes: Mapping[str, float]
) -> Compared:
    """Compare all of live's outputs: callers know no others of the candidate.

    `sizes` are the usual norms of live's, for answers close to zero.
    """
    if not set(live) <= set(candidate):
        return Compared(agrees=False, distance=1.0)
    parts = [
        _compare(live[name], candidate[name], tolerance, sizes.get(name, 0.0)) for name in live
    ]
    return Compared(
        all(part.agrees for part in parts),
        any(part.non_finite for part in parts),
        max((part.distance for part in parts), default=0.0),
    )


def norm(answer: np.ndarray) -> float | None:
    """The L2 norm of numbers; None for labels and for what is not finite."""
    if not _is_number(answer) or not np.isfinite(answer).all():
        return None
    return float(np.linalg.norm(answer.astype(np.float64).ravel()))


def statistics(answer: Answer) -> Iterator[tuple[str, Value]]:
    """What the distribution of the answers is judged by, by name: classes, labels, means."""
    for name, value in answer.items():
        if not value.size:
            continue
        if not _is_number(value):
            yield name, str(value.ravel()[0])
        elif not np.isfinite(value).all():
            yield name, "not finite"
        elif _is_scores(value):  # their scale is the model's own affair
            yield name, str(int(value.argmax()))
        else:
            yield name, float(value.mean())


def _compare(live: np.ndarray, candidate: np.ndarray, tolerance: float, size: float) -> Compared:
    if live.shape != candidate.shape:
        return Compared(agrees=False, distance=1.0)
    if not (_is_number(live) and _is_number(candidate)):
        equal = bool((live == candidate).all())
        return Compared(equal, distance=0.0 if equal else 1.0)
    ours, theirs = candidate.astype(np.float64), live.astype(np.float64)
    known, answered = np.isfinite(theirs), np.isfinite(ours)
    if not answered.all():
        same = bool((known == answered).all())
        return Compared(same, non_finite=bool((known & ~answered).any()))
    scale = max(float(np.linalg.norm(theirs[known])), size, float(np.finfo(np.float64).tiny))
    distance = min(float(np.linalg.norm((ours - theirs)[known])) / scale, _FAR)
    if _is_scores(live):
        agrees = bool(known.all() and ours.argmax() == theirs.argmax())
    else:
        agrees = bool(known.all() and distance <= tolerance)
    return Compared(agrees, distance=distance)


def _is_number(value: np.ndarray) -> bool:
    return value.dtype.kind == "f"


def _is_scores(value: np.ndarray) -> bool:
    return value.ndim == 1 and value.size > 1
