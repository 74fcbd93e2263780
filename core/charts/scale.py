"""Map values to pixels, and choose round values to label an axis with. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0)
_MIN_TICKS = 3

# Values that span more than this factor get a logarithmic axis.
LOG_SPAN = 6.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A round value and its text on the axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low`..`high` to `start`..`end` pixels; values outside are drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._unit(self.low), self._unit(self.high)
        value = min(max(value, self.low), self.high)
        return self.start + (self._unit(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[Tick, ...]:
        """Return about `count` round values within the range."""
        if self.log:
            values = _log_values(self.low, self.high, count)
            if len(values) >= _MIN_TICKS:
                return tuple(Tick(value, _label(value, value)) for value in values)
        step = _step(self.low, self.high, count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        multiples = (round(number * step, 12) for number in range(first, last + 1))
        return tuple(Tick(value, _label(value, step)) for value in multiples)

    def _unit(self, value: float) -> float:
        return math.log10(value) if self.log else value


def fit(values: Iterable[float], start: float, end: float, *, positive: bool = False) -> Scale:
    """Return a scale with a margin around `values`, logarithmic if they span a wide range.

    `positive`: the values are sizes or durations, so nothing lies below zero.
    """
    found = sorted(values)
    low, high = found[0], found[-1]
    if positive and low > 0 and high / low > LOG_SPAN:
        margin = (high / low) ** 0.12
        return Scale(low / margin, high * margin, start, end, log=True)
    margin = 0.12 * (high - low) or 0.3 * abs(high) or 1.0
    return Scale(max(0.0, low - margin) if positive else low - margin, high + margin, start, end)


def _label(value: float, step: float) -> str:
    """Return `value` with enough decimals to differ from a neighbour `step` away."""
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _step(low: float, high: float, count: int) -> float:
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * unit for unit in (*_STEPS, 10.0) if power * unit >= raw * (1 - 1e-9))


def _log_values(low: float, high: float, count: int) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (_STEPS, _STEPS[:1]):
        every = (unit * 10.0**power for power in powers for unit in steps)
        found = tuple(value for value in every if low <= value <= high)
        if len(found) <= 2 * count:
            break
    return found
