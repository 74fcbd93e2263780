"""What the Pareto picture shows: each variant's cost and quality, with their uncertainty. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimize.choice import MEGABYTE
from optimize.goals import MIN_AGREEMENT, MIN_CENTRED_COSINE, Prefer
from optimize.report.record import OptimizeReport, VariantVerdict
from optimize.variant import Measured

# Beyond so many times the distance from the best to the limit, a point is drawn at the edge:
# one broken variant would otherwise squeeze all others into a line.
_WINDOW = 5.0

Range = tuple[float, float, float]
"""A value between its lower and its upper end."""


@dataclass(frozen=True, slots=True)
class Point:
    """One variant: `x` costs less to the left; `y` is its quality as the gate sees it."""

    recipe: str
    verdict: VariantVerdict
    x: Range
    y: Range


@dataclass(frozen=True, slots=True)
class Picture:
    """The points and what their axes mean; `limit` is the quality that a variant has to reach.

    `falling` says that lower values of y are better; `source` is the source model's own.
    """

    points: tuple[Point, ...]
    x_title: str
    x_bars: str
    y_title: str
    y_bars: str
    limit: float
    source: float
    falling: bool

    def better(self, left: float, right: float) -> bool:
        """Whether quality `left` is better than `right`."""
        return left < right if self.falling else left > right

    @property
    def window(self) -> tuple[float, float]:
        """The lowest and highest quality to draw."""
        ends = [end for point in self.points for end in point.y] + [self.limit, self.source]
        best = min(ends) if self.falling else max(ends)
        edge = best + _WINDOW * (self.limit - best)
        if edge == best:
            return min(ends), max(ends)
        if self.falling:
            return min(ends), min(edge, max(ends))
        return max(edge, min(ends)), max(ends)


def picture(report: OptimizeReport) -> Picture | None:
    """The picture of a report; None if every variant failed."""
    if not report.measured:
        return None
    x_title, x_bars, xs = _costs(report)
    y_title, y_bars, ys = _qualities(report)
    limit, source = _limit(report)
    points = (
        Point(item.recipe, item.verdict, x, y)
        for (item, _), x, y in zip(report.measured, xs, ys, strict=True)
    )
    falling = report.lower_is_better
    return Picture(tuple(points), x_title, x_bars, y_title, y_bars, limit, source, falling)


def front(view: Picture) -> tuple[Point, ...]:
    """The points that no other beats in both ways, the cheapest first."""
    found: list[Point] = []
    for point in sorted(view.points, key=lambda each: (each.x[1], _worse(view, each))):
        if not found or view.better(point.y[1], found[-1].y[1]):
            found.append(point)
    return tuple(found)


def _worse(view: Picture, point: Point) -> float:
    return point.y[1] if view.falling else -point.y[1]


def _costs(report: OptimizeReport) -> tuple[str, str, list[Range]]:
    found = [measured for _, measured in report.measured]
    if report.goals.prefer is Prefer.SIZE or not report.timed:
        sizes = [measured.size_bytes / MEGABYTE for measured in found]
        return "size in MB", "", [(value, value, value) for value in sizes]
    if report.goals.prefer is Prefer.THROUGHPUT:
        return "ms for one row, best batch", "quartiles", [_best_batch(each) for each in found]
    return "ms for a single row", "quartiles", [_single(each) for each in found]


def _single(measured: Measured) -> Range:
    first = measured.latency[0]
    return first.q1_ms, first.median_ms, first.q3_ms


def _best_batch(measured: Measured) -> Range:
    best = max(measured.latency, key=lambda batch: batch.rows_per_second)
    return best.q1_ms / best.batch, best.median_ms / best.batch, best.q3_ms / best.batch


def _qualities(report: OptimizeReport) -> tuple[str, str, list[Range]]:
    found = [measured for _, measured in report.measured]
    if all(measured.score is not None for measured in found):
        falling = report.lower_is_better
        level = next(each.score.drop.level for each in found if each.score is not None)
        bars = f"{level:.0%} interval"
        return report.metric or "score", bars, [_score(each, falling) for each in found]
    agreements = [measured.parity.agreement for measured in found]
    known = [value for value in agreements if value is not None]
    if len(known) == len(found):
        return "agreement with the source", "", _exact(known)
    return "centred cosine", "", _exact([measured.parity.centred_cosine for measured in found])


def _exact(values: Sequence[float]) -> list[Range]:
    return [(value, value, value) for value in values]


def _score(measured: Measured, falling: bool) -> Range:
    """The score with the ends that its paired drop from the source's score allows."""
    score = measured.score
    assert score is not None
    sign = 1.0 if falling else -1.0
    ends = (score.reference + sign * score.drop.low, score.reference + sign * score.drop.high)
    return min(ends), score.value, max(ends)


def _limit(report: OptimizeReport) -> tuple[float, float]:
    """The quality that passes, and the source's own."""
    goals = report.goals
    if report.source_score is not None:
        sign = 1.0 if report.lower_is_better else -1.0
        return report.source_score + sign * goals.accuracy_drop, report.source_score
    if all(measured.parity.agreement is not None for _, measured in report.measured):
        return (MIN_AGREEMENT if goals.min_agreement is None else goals.min_agreement), 1.0
    cosine = goals.min_centred_cosine
    return (MIN_CENTRED_COSINE if cosine is None else cosine), 1.0
