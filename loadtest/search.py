"""The search for the settings that answer most within a latency goal. Pure: trials are given.

One knob at a time is moved to its neighbouring values for as long as that gains, again and
again until a whole round gains nothing. Each combination is tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Values = Mapping[str, float]

# Two runs of the same settings differ by so much on a machine that does other things, too.
_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting: its `values` in order, and the one to begin with."""

    name: str
    values: Sequence[float]
    first: float

    def __post_init__(self) -> None:
        if self.first not in self.values:
            raise ValueError(f"{self.name}: {self.first} is none of its values")


@dataclass(frozen=True, slots=True)
class Score:
    """What a trial gave: whether it `fits` the goal, its `gain` (more is better) and its p99.

    Of two that do not fit, the one with the lower p99 is nearer to the goal.
    """

    fits: bool
    gain: float
    p99_ms: float

    def beats(self, other: Score) -> bool:
        """Whether this is better than `other` by more than chance may be."""
        if self.fits != other.fits:
            return self.fits
        if self.fits:
            return self.gain > other.gain * (1 + _NOISE)
        return self.p99_ms < other.p99_ms * (1 - _NOISE)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best values and their score; `complete` unless the search was stopped before its end."""

    values: Values
    score: Score
    trials: int
    complete: bool


def search(
    knobs: Sequence[Knob],
    trial: Callable[[Values], Score],
    may_go_on: Callable[[], bool] = lambda: True,
) -> SearchResult:
    """The best of the values tried; `may_go_on` is asked before each trial but the first."""
    tried: dict[tuple[float, ...], Score] = {}

    def score(values: Values) -> Score:
        key = tuple(values[knob.name] for knob in knobs)
        if key not in tried:
            if tried and not may_go_on():
                raise _OutOfTimeError
            tried[key] = trial(values)
        return tried[key]

    best: Values = {knob.name: knob.first for knob in knobs}
    score(best)
    complete = True
    try:
        gained = True
        while gained:
            gained = False
            for knob in knobs:
                better = _climb(knob, best, score)
                gained = gained or better != best
                best = better
    except _OutOfTimeError:
        complete = False
        best = _best_of(knobs, tried)
    return SearchResult(best, tried[tuple(best[knob.name] for knob in knobs)], len(tried), complete)


class _OutOfTimeError(Exception):
    """No trial may be begun any more."""


def _climb(knob: Knob, start: Values, score: Callable[[Values], Score]) -> Values:
    """`start` with the knob moved up, or else down, for as long as each step gains."""
    for step in (1, -1):
        best, index = start, knob.values.index(start[knob.name]) + step
        while 0 <= index < len(knob.values):
            moved = {**best, knob.name: knob.values[index]}
            if not score(moved).beats(score(best)):
                break
            best, index = moved, index + step
        if best != start:
            return best
    return start


def _best_of(knobs: Sequence[Knob], tried: Mapping[tuple[float, ...], Score]) -> Values:
    best, *others = tried
    for key in others:
        if tried[key].beats(tried[best]):
            best = key
    return {knob.name: value for knob, value in zip(knobs, best, strict=True)}
