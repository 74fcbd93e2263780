"""Coordinate search for the settings with the most answers within a latency goal. Pure.

One knob at a time moves to a neighbouring value while that improves the score, until a whole round
improves nothing. Each combination is tried once, by a function that the caller provides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Values = Mapping[str, float]

# Two runs of the same settings differ by this share on a machine with other load.
_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting: its `values` in order, and the one to start with."""

    name: str
    values: Sequence[float]
    first: float

    def __post_init__(self) -> None:
        if self.first not in self.values:
            raise ValueError(f"{self.name}: {self.first} is not one of its values")


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a trial: whether it `fits` the goal, its `gain` (more is better), its p99.

    Of two trials that do not fit, the one with the lower p99 is better.
    """

    fits: bool
    gain: float
    p99_ms: float

    def beats(self, other: Score) -> bool:
        """Return whether this is better than `other` by more than the noise."""
        if self.fits != other.fits:
            return self.fits
        if self.fits:
            return self.gain > other.gain * (1 + _NOISE)
        return self.p99_ms < other.p99_ms * (1 - _NOISE)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best values and their score; not `complete` if the search ran out of time."""

    values: Values
    score: Score
    trials: int
    complete: bool


def search(
    knobs: Sequence[Knob],
    trial: Callable[[Values], Score],
    may_go_on: Callable[[], bool] = lambda: True,
) -> SearchResult:
    """Return the best values; `may_go_on` is called before each trial except the first."""
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
    """No further trial may start."""


def _climb(knob: Knob, start: Values, score: Callable[[Values], Score]) -> Values:
    """Return `start` with the knob moved up, or else down, while each step improves the score."""
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
