"""Compare outputs with the expected ones: rows that differ, by how much, the tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from mlctl.bundle.arrays import Arrays

# Returns the largest allowed difference of an output from its expected values.
Tolerance = Callable[[np.ndarray], float]


class PathVerdict(StrEnum):
    """The result for one path."""

    SAME = "same"
    CLOSE = "close"
    DIFFERS = "differs"
    NO_ANSWER = "no answer"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class PathComparison:
    """The outputs of `path` for requests of `size` rows of `data`, compared with the expected ones.

    Of `rows` rows, `differing` have other bits, by at most `largest` (None if it is not finite).
    `allowed` is None if no bit may differ. `output` names the output that differs most.
    """

    path: str
    data: str
    size: int
    verdict: PathVerdict
    rows: int = 0
    differing: int = 0
    largest: float | None = None
    allowed: float | None = None
    output: str = ""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the outputs are within the tolerance, or the path cannot carry the values."""
        return self.verdict not in (PathVerdict.DIFFERS, PathVerdict.NO_ANSWER)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as --json shows it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The difference of one output; an `excess` above 1 is beyond the tolerance."""

    output: str
    differing: int
    largest: float
    allowed: float | None
    detail: str = ""

    @property
    def excess(self) -> float:
        if not self.differing:
            return 0.0
        if self.allowed is None or self.detail:
            return math.inf
        return self.largest / self.allowed if self.allowed else math.inf


def compare(
    path: str,
    data: str,
    size: int,
    expected: Sequence[Arrays],
    actual: Sequence[Arrays],
    tolerance: Tolerance | None,
    *,
    batched: bool = True,
) -> PathComparison:
    """Compare the output that differs most; without a `tolerance` no bit may differ.

    Without a batch dimension each request counts as one row.
    """
    found = [_output(name, expected, actual, tolerance, batched=batched) for name in expected[0]]
    worst = max(found, key=lambda each: (each.excess, each.largest))
    rows = sum(_rows(next(iter(each.values())), batched=batched) for each in expected)
    if not worst.differing:
        verdict = PathVerdict.SAME
    else:
        verdict = PathVerdict.CLOSE if worst.excess <= 1 else PathVerdict.DIFFERS
    largest = worst.largest if math.isfinite(worst.largest) else None
    return PathComparison(
        path, data, size, verdict, rows, worst.differing, largest, worst.allowed, worst.output,
        worst.detail,
    )  # fmt: skip


def _output(
    name: str,
    expected: Sequence[Arrays],
    actual: Sequence[Arrays],
    tolerance: Tolerance | None,
    *,
    batched: bool,
) -> _Difference:
    rows = sum(_rows(each[name], batched=batched) for each in expected)
    if len(actual) != len(expected):
        detail = f"{len(actual)} answers to {len(expected)} requests"
        return _Difference(name, rows, math.inf, None, detail)
    differing, largest, allowed = 0, 0.0, None
    for wanted, found in zip(expected, actual, strict=True):
        want, have = wanted[name], found.get(name)
        if have is None or have.dtype != want.dtype or have.shape != want.shape:
            form = "missing" if have is None else f"{have.dtype.name} {list(have.shape)}"
            detail = f"it is {form}, expected {want.dtype.name} {list(want.shape)}"
            return _Difference(name, rows, math.inf, None, detail)
        differing += int(other_bits(want, have, batched=batched).sum())
        largest = max(largest, _largest(want, have))
        if tolerance is not None and want.dtype.kind not in "Ob":
            allowed = max(allowed or 0.0, tolerance(want))
    return _Difference(name, differing, largest, allowed)


def other_bits(want: np.ndarray, have: np.ndarray, *, batched: bool = True) -> np.ndarray:
    """Return for each row whether any bit differs; both arrays have one dtype and shape."""
    rows = _rows(want, batched=batched)
    if want.dtype == object:
        unequal: np.ndarray = (want != have).reshape(rows, -1).any(axis=1)
        return unequal
    left, right = (
        np.frombuffer(each.tobytes(), np.uint8).reshape(rows, each.nbytes // max(1, rows))
        for each in (want, have)
    )
    different: np.ndarray = (left != right).any(axis=1)
    return different


def _largest(want: np.ndarray, have: np.ndarray) -> float:
    """Return the largest absolute difference; infinite where only one value is a number."""
    if want.dtype.kind in "Ob":
        return 0.0 if np.array_equal(want, have) else math.inf
    left, right = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    difference = np.where(equal, 0.0, np.where(np.isnan(difference), math.inf, difference))
    return float(difference.max(initial=0.0))


def _rows(array: np.ndarray, *, batched: bool) -> int:
    return len(array) if batched else 1
