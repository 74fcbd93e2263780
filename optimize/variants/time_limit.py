"""How long an optimization takes, from the time of a forward pass, and what to try in a limit.

Estimates are counts of planned passes times the source model's measured pace. Pure but for
`graph_pace` and `measure_pace`, which run the model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlctl.core.clock import Clock
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.latency import fewest_seconds, most_seconds
from mlctl.optimize.recipes.base import Recipe, Target
from mlctl.optimize.recipes.graphs import count_matrices
from mlctl.optimize.variants.goals import Prefer
from mlctl.services.model.session import open_session

# Rows that run together while a recipe calibrates, and those that show contamination.
_BATCH, _SAMPLE_ROWS = 8, 60
_ROWS_OBSERVED = 32
_TIMED_RUNS, _TIMED_SECONDS = 3, 1.0
# A graph is read, rewritten and opened: as often as long as it takes to open it.
_WRITE_LOADS = 3
# Forms that a recipe tries at most, each with its own graph, before it searches.
_MAX_FORMS = 4
# Other work on the machine, and variants that are slower or faster than the source.
_FASTER, _SLOWER = 0.7, 1.5


class OutOfTimeError(ValueError):
    """The time limit ended a recipe's work."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """An estimate: at least `low`, at most `high`."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.high + other.high)

    def times(self, count: int) -> Seconds:
        """Return the estimate for `count` such pieces of work."""
        return Seconds(count * self.low, count * self.high)

    @property
    def words(self) -> str:
        """The range in words, for example "40 s to 5 min"."""
        low, high = _rounded(self.low * _FASTER), _rounded(self.high * _SLOWER)
        return f"about {low}" if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class Pace:
    """The source model's seconds: `call` for a run, `row` for each row in it, `load` to open it.

    `layers` counts what a search may quantize one by one; 0 before the export.
    """

    call: float
    row: float
    load: float = 0.0
    layers: int = 0

    def passes(self, rows: int, batch: int) -> float:
        """Return the seconds of one pass over `rows`, `batch` at a time."""
        return math.ceil(rows / batch) * self.call + rows * self.row

    def build(self, recipe: Recipe, calibration_rows: int) -> Seconds:
        """Return the time that `recipe` takes, with its calibration and its search, if any."""
        write = _WRITE_LOADS * self.load
        if recipe.precision == "fp32":
            return Seconds(0.0, write)
        if not recipe.tuned:
            found = write + self.passes(_ROWS_OBSERVED, _BATCH)
            return Seconds(found, found)
        each = self.passes(calibration_rows, _BATCH) + write
        sensitivity = self.layers * (self.passes(_BATCH, _BATCH) + write)
        bisection = math.log2(max(2, self.layers)) if self.layers else 0.0
        high = (2 + _MAX_FORMS + bisection) * each + sensitivity
        return Seconds(2 * each, high)

    def judge(self, rows: int, batch: int) -> Seconds:
        """Return the time to compare a variant with the source on `rows`."""
        once = self.load + self.passes(rows + _SAMPLE_ROWS, batch)
        # A variant whose rows influence each other answers again, one row at a time.
        return Seconds(once, once + self.passes(rows, 1))

    def latency(self, sizes: Iterable[int]) -> Seconds:
        """Return the time to measure one variant at batches of these sizes."""
        runs = [self.passes(size, size) for size in sizes]
        low = self.load + sum(map(fewest_seconds, runs))
        return Seconds(low, self.load + sum(map(most_seconds, runs)))


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """What is left until `end` on `clock`, of the `seconds` that a run may take."""

    seconds: float
    end: float
    clock: Clock
    pace: Pace

    def left(self) -> float:
        """Return the seconds that are left; negative after the end."""
        return self.end - self.clock.monotonic()

    @property
    def reason(self) -> str:
        """Why a recipe is skipped. It becomes evidence, so no clock has a part in it."""
        return f"the time limit of {self.seconds:g} s leaves no time for it"


def graph_pace(graph: Path, rows: Rows, clock: Clock) -> Pace:
    """Open the ONNX file `graph` and return its pace on `rows`."""
    begin = clock.monotonic()
    session = open_session(graph)
    load = clock.monotonic() - begin
    return measure_pace(session.run, rows, clock, load, count_matrices(graph))


def measure_pace(
    run: Callable[[Tensors], Any], rows: Rows, clock: Clock, load: float = 0.0, layers: int = 0
) -> Pace:
    """Run a single row and a few rows of the source model, and return its pace."""
    few = min(_BATCH, rows.count)
    one = _time(run, rows.head(1).inputs, clock)
    some = _time(run, rows.head(few).inputs, clock)
    row = max(0.0, some - one) / (few - 1) if few > 1 else one
    return Pace(max(0.0, one - row), row, load, layers)


def _time(run: Callable[[Tensors], Any], inputs: Tensors, clock: Clock) -> float:
    run(inputs)
    found: list[float] = []
    while len(found) < _TIMED_RUNS and sum(found) < _TIMED_SECONDS:
        begin = clock.monotonic()
        run(inputs)
        found.append(clock.monotonic() - begin)
    return statistics.median(found)


# What is tried first: on CPUs half precision is seldom faster, on GPUs it costs the least.
_CPU = ("fp32", "int8", "int4", "fp16")
_GPU = ("fp32", "fp16", "int8", "int4")
_SIZE = ("fp32", "int4", "int8", "fp16")


def by_promise(recipes: Sequence[Recipe], target: Target, prefer: Prefer) -> list[Recipe]:
    """Return the recipes, those first that promise most; the baseline is the very first."""
    order = _CPU if target is Target.CPU else _GPU
    if prefer is Prefer.SIZE:
        order = _SIZE
    return sorted(recipes, key=lambda recipe: order.index(recipe.precision))


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
