"""Two answers to one row: whether they agree, how far apart they are, what they are like. Pure.

Class scores agree when the same class is highest, labels (integers, truth values, text) when
they are equal, other numbers when they lie within a share of their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mlctl.bundle.output_kinds import OutputKind, output_kind, same_top_class
from mlctl.rollout.domain.statistics.drift import Value

_KIND_ROWS = 64  # rows from which the kind of an output is recognized

# One row's outputs by name. A scalar has no dimension, a vector one; further ones are flattened
# behind leading ones, so that they are not taken for scores.
Answer = Mapping[str, np.ndarray]


class LiveOutputs:
    """What the live revision's outputs are like: their usual size, and whether they are scores."""

    def __init__(self) -> None:
        self._norms: dict[str, tuple[float, int]] = {}
        self._vectors: dict[str, list[np.ndarray]] = {}
        self._scores: dict[str, bool] = {}

    def add(self, answer: Answer) -> None:
        """Learn from one live row."""
        for name, value in answer.items():
            if (size := norm(value)) is None:
                continue
            total, count = self._norms.get(name, (0.0, 0))
            self._norms[name] = (total + size, count + 1)
            vectors = self._vectors.setdefault(name, [])
            alike = not vectors or vectors[0].shape == value.shape
            if value.ndim == 1 and value.size > 1 and alike and len(vectors) < _KIND_ROWS:
                vectors.append(value)
                self._scores.pop(name, None)

    def size(self, name: str) -> float:
        """Return the mean norm of an output, for answers close to zero; 0 if it is unknown."""
        total, count = self._norms.get(name, (0.0, 0))
        return total / count if count else 0.0

    def are_scores(self, name: str, value: np.ndarray) -> bool:
        """Return whether the output `name`, of which `value` is a row, holds class scores."""
        if value.ndim != 1 or value.size < 2:
            return False
        if name not in self._scores:
            rows = np.stack(self._vectors.get(name) or [value])
            self._scores[name] = output_kind(name, rows) is OutputKind.CLASS_SCORES
        return self._scores[name]


@dataclass(frozen=True, slots=True)
class Compared:
    """`non_finite`: a NaN or infinity where the live answer has none."""

    agrees: bool
    non_finite: bool = False


def compare(live: Answer, candidate: Answer, tolerance: float, outputs: LiveOutputs) -> Compared:
    """Compare all of live's outputs: callers know no others of the candidate."""
    if not set(live) <= set(candidate):
        return Compared(agrees=False)
    parts = [_compare(name, live[name], candidate[name], tolerance, outputs) for name in live]
    return Compared(
        all(part.agrees for part in parts),
        any(part.non_finite for part in parts),
    )


def norm(answer: np.ndarray) -> float | None:
    """The L2 norm of numbers; None for labels and for what is not finite."""
    if not _is_number(answer) or not np.isfinite(answer).all():
        return None
    return float(np.linalg.norm(answer.astype(np.float64).ravel()))


def statistics(answer: Answer, outputs: LiveOutputs) -> Iterator[tuple[str, Value]]:
    """What the distribution of the answers is judged by, by name: classes, labels, means."""
    for name, value in answer.items():
        if not value.size:
            continue
        if not _is_number(value):
            yield name, str(value.ravel()[0])
        elif not np.isfinite(value).all():
            yield name, "not finite"
        elif outputs.are_scores(name, value):  # their scale says nothing
            yield name, str(int(value.argmax()))
        else:
            yield name, float(value.mean())


def _compare(
    name: str,
    live: np.ndarray,
    candidate: np.ndarray,
    tolerance: float,
    outputs: LiveOutputs,
) -> Compared:
    if live.shape != candidate.shape:
        return Compared(agrees=False)
    if not (_is_number(live) and _is_number(candidate)):
        return Compared(bool((live == candidate).all()))
    ours, theirs = candidate.astype(np.float64), live.astype(np.float64)
    finite, answered = np.isfinite(theirs), np.isfinite(ours)
    if not answered.all():
        same = bool((finite == answered).all())
        return Compared(same, non_finite=bool((finite & ~answered).any()))
    usual = outputs.size(name)
    scale = max(float(np.linalg.norm(theirs[finite])), usual, float(np.finfo(np.float64).tiny))
    distance = float(np.linalg.norm((ours - theirs)[finite])) / scale
    if outputs.are_scores(name, live):
        rows = theirs.reshape(1, -1), ours.reshape(1, -1)
        agrees = bool(finite.all() and same_top_class(*rows)[0])
    else:
        agrees = bool(finite.all() and distance <= tolerance)
    return Compared(agrees)


def _is_number(value: np.ndarray) -> bool:
    return value.dtype.kind == "f"
