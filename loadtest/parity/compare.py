"""Answers beside the wanted ones: which rows differ, by how much, and whether that may be. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from loadtest.parity.base import Arrays

# The largest difference that is allowed of an output, by the wanted values.
Tolerance = Callable[[np.ndarray], float]


class PathVerdict(StrEnum):
    """What was found of one way."""

    SAME = "same"
    CLOSE = "close"
    DIFFERS = "differs"
    NO_ANSWER = "no answer"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class PathComparison:
    """How the answers of `way` to requests of `size` rows of `data` compare.

    Of `rows` rows `differing` have other bits, by at most `largest`; `allowed` is None if none
    may differ. `largest` is None where it is no number. `output` is the one that it is about.
    """

    way: str
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
        """Whether it is as it must be, or was not to be had by its nature."""
        return self.verdict not in (PathVerdict.DIFFERS, PathVerdict.NO_ANSWER)

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON carries it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Difference:
    """One output's; `excess` orders them: above 1 is too much."""

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
    way: str,
    data: str,
    size: int,
    wanted: Sequence[Arrays],
    have: Sequence[Arrays],
    tolerance: Tolerance | None,
    *,
    batched: bool = True,
) -> PathComparison:
    """The finding of the output that differs most; without a `tolerance` no bit may differ.

    Without a batch dimension each request counts as one row.
    """
    found = [_output(name, wanted, have, tolerance, batched=batched) for name in wanted[0]]
    worst = max(found, key=lambda each: (each.excess, each.largest))
    rows = sum(_rows(next(iter(each.values())), batched=batched) for each in wanted)
    if not worst.differing:
        verdict = PathVerdict.SAME
    else:
        verdict = PathVerdict.CLOSE if worst.excess <= 1 else PathVerdict.DIFFERS
    largest = worst.largest if math.isfinite(worst.largest) else None
    return PathComparison(
        way, data, size, verdict, rows, worst.differing, largest, worst.allowed, worst.output,
        worst.detail,
    )  # fmt: skip


def _output(
    name: str,
    wanted: Sequence[Arrays],
    have: Sequence[Arrays],
    tolerance: Tolerance | None,
    *,
    batched: bool,
) -> _Difference:
    rows = sum(_rows(each[name], batched=batched) for each in wanted)
    if len(have) != len(wanted):
        detail = f"{len(have)} answers to {len(wanted)} requests"
        return _Difference(name, rows, math.inf, None, detail)
    differing, largest, allowed = 0, 0.0, None
    for want, got in zip(wanted, have, strict=True):
        mine, its = want[name], got.get(name)
        if its is None or its.dtype != mine.dtype or its.shape != mine.shape:
            what = "nothing" if its is None else f"{its.dtype.name} {list(its.shape)}"
            detail = f"it is {what}, not {mine.dtype.name} {list(mine.shape)}"
            return _Difference(name, rows, math.inf, None, detail)
        differing += int(other_bits(mine, its, batched=batched).sum())
        largest = max(largest, _largest(mine, its))
        if tolerance is not None and mine.dtype.kind not in "Ob":
            allowed = max(allowed or 0.0, tolerance(mine))
    return _Difference(name, differing, largest, allowed)


def other_bits(want: np.ndarray, have: np.ndarray, *, batched: bool = True) -> np.ndarray:
    """For each row whether any bit of it differs; of one dtype and one shape."""
    rows = _rows(want, batched=batched)
    if want.dtype == object:
        unequal: np.ndarray = (want != have).reshape(rows, -1).any(axis=1)
        return unequal
    mine, its = (
        np.frombuffer(each.tobytes(), np.uint8).reshape(rows, each.nbytes // max(1, rows))
        for each in (want, have)
    )
    different: np.ndarray = (mine != its).any(axis=1)
    return different


def _largest(want: np.ndarray, have: np.ndarray) -> float:
    """The largest absolute difference; infinite where only one of two is a number."""
    if want.dtype.kind in "Ob":
        return 0.0 if np.array_equal(want, have) else math.inf
    mine, its = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(mine - its)
    alike = (mine == its) | (np.isnan(mine) & np.isnan(its))
    difference = np.where(alike, 0.0, np.where(np.isnan(difference), math.inf, difference))
    return float(difference.max(initial=0.0))


def _rows(array: np.ndarray, *, batched: bool) -> int:
    return len(array) if batched else 1
