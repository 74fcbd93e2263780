"""The charts of the report page as SVG shapes with pixel coordinates. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from mlctl.core.charts.numbers import significant
from mlctl.core.charts.scale import Scale, fit
from mlctl.core.charts.shapes import (
    Area,
    Chart,
    Shape,
    columns,
    horizontal,
    note,
    polyline,
    rows,
    shape,
)
from mlctl.optimize.metrics.latency import BatchLatency
from mlctl.optimize.result.evidence import OptimizeReport
from mlctl.optimize.variants.choice import MEGABYTE, VariantVerdict
from mlctl.optimize.variants.goals import MIN_AGREEMENT, MIN_CENTRED_COSINE, Prefer, max_relative_l2

# A variant is drawn at the edge if it is this many times as far from the best as the limit is: one
# broken variant would otherwise squeeze the others into a line.
_WINDOW = 5.0

_CHARACTER, _TEXT_HEIGHT = 6.9, 16.0


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A value between the ends of its interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """One variant: what it costs, and its quality as the gate sees it."""

    recipe: str
    verdict: VariantVerdict
    cost: Uncertain
    quality: Uncertain


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Quality against cost of all variants; `limit` is the quality that passes.

    `source` is the quality of the source model.
    """

    points: tuple[Point, ...]
    cost: str
    quality: str
    bars: str
    limit: float
    source: float
    higher_is_better: bool

    def front(self) -> list[Point]:
        """Return the points that no other point beats in both ways, the cheapest first."""
        sign = 1.0 if self.higher_is_better else -1.0
        found: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.cost.value, -sign * p.quality.value)):
            if not found or sign * (point.quality.value - found[-1].quality.value) > 0:
                found.append(point)
        return found

    def window(self) -> tuple[float, float]:
        """Return the lowest and highest quality to draw."""
        ends = [end for point in self.points for end in (point.quality.low, point.quality.high)]
        ends += [self.limit, self.source]
        best = max(ends) if self.higher_is_better else min(ends)
        edge = best + _WINDOW * (self.limit - best)
        if edge == best:
            return min(ends), max(ends)
        if self.higher_is_better:
            return max(edge, min(ends)), max(ends)
        return min(ends), min(edge, max(ends))


def tradeoff(report: OptimizeReport) -> Tradeoff | None:
    """Return the points of the Pareto chart; None if every variant failed."""
    if not report.measured:
        return None
    cost, cost_bars, costs = _costs(report)
    goals = report.goals
    found = [measured for _, measured in report.measured]
    scores = [measured.score for measured in found if measured.score is not None]
    shares = [share for each in found if (share := each.parity.agreement) is not None]
    bars, higher, source = "", True, 1.0
    if report.metric is not None and report.source_score is not None and len(scores) == len(found):
        higher, source = report.metric.higher_is_better, report.source_score
        sign = -1.0 if higher else 1.0
        quality, limit = report.metric.name, source + sign * goals.accuracy_drop
        bars = f"{scores[0].drop.level:.0%} interval"
        ends = [(each.reference + sign * each.drop.low, each.value) for each in scores]
        others = [each.reference + sign * each.drop.high for each in scores]
        qualities = [
            Uncertain(min(low, high), value, max(low, high))
            for (low, value), high in zip(ends, others, strict=True)
        ]
    elif len(shares) == len(found):
        quality = "agreement with the source"
        limit = MIN_AGREEMENT if goals.min_agreement is None else goals.min_agreement
        qualities = [Uncertain(share, share, share) for share in shares]
    else:
        quality, higher, source = "relative L2 to the source", False, 0.0
        cosine = goals.min_centred_cosine
        limit = max_relative_l2(MIN_CENTRED_COSINE if cosine is None else cosine)
        errors = [measured.parity.relative_l2 for measured in found]
        qualities = [Uncertain(error, error, error) for error in errors]
    points = (
        Point(item.variant.recipe, item.verdict, *values)
        for (item, _), *values in zip(report.measured, costs, qualities, strict=True)
    )
    bars = ", ".join(part for part in (bars, cost_bars) if part)
    return Tradeoff(tuple(points), cost, quality, bars, limit, source, higher)


def _costs(report: OptimizeReport) -> tuple[str, str, list[Uncertain]]:
    """Return the title of the preferred cost, what its bars are, and each variant's cost."""
    found = [measured for _, measured in report.measured]
    if report.goals.prefer is Prefer.SIZE or not report.timed:
        sizes = [measured.size_bytes / MEGABYTE for measured in found]
        return "size in MB", "", [Uncertain(value, value, value) for value in sizes]
    if report.generates:
        return "ms for a token", "quartiles", [_row_ms(each.latency[0]) for each in found]
    if report.goals.prefer is Prefer.THROUGHPUT:
        return (
            "ms for one row, best batch",
            "quartiles",
            [_row_ms(each.best_batch) for each in found],
        )
    return "ms for a single row", "quartiles", [_row_ms(each.latency[0]) for each in found]


def _row_ms(latency: BatchLatency) -> Uncertain:
    batch = latency.batch
    return Uncertain(latency.q1_ms / batch, latency.median_ms / batch, latency.q3_ms / batch)


def pareto_chart(view: Tradeoff) -> Chart:
    """Draw quality against cost with intervals, limit, source and Pareto front."""
    width, height = 860.0, 440.0
    area = Area(72, 40, width - 118, height - 92)
    costs = (end for point in view.points for end in (point.cost.low, point.cost.high))
    x = fit(costs, area.left, area.right, positive=True)
    up = (area.bottom, area.top) if view.higher_is_better else (area.top, area.bottom)
    y = fit(view.window(), *up)
    better = "up is better" if view.higher_is_better else "lower is better, so up is better"
    listed = ", ".join(
        f"{point.recipe} ({point.verdict}): {significant(point.cost.value)}, "
        f"{significant(point.quality.value, 4)}"
        for point in view.points
    )
    shapes = [
        *rows(y, area),
        *columns(x.ticks(6), x, area),
        shape("text", f"{view.quality}, {better}", x=0, y=18, class_="axis"),
        shape(
            "text",
            f"{view.cost}, left is better",
            x=area.right,
            y=area.bottom + 38,
            text_anchor="end",
            class_="axis",
        ),
        *_reference_lines(view, y, area),
        _front(view, x, y, area),
        *(each for point in view.points for each in _interval_bars(point, x, y)),
        *(each for point in view.points for each in _point(view, point, x, y)),
        *_labels(view, x, y, area),
        *_legend(view, area, height - 16),
    ]
    title = f"{view.quality} against {view.cost}"
    description = f"Better is up and to the left. {listed}."
    return Chart(title, description, width, height, tuple(shapes))


def _reference_lines(view: Tradeoff, y: Scale, area: Area) -> Iterator[Shape]:
    """The source model's quality and the limit, named in the right margin."""
    heights = y(view.source), y(view.limit)
    gap = max(0.0, _TEXT_HEIGHT - abs(heights[0] - heights[1])) / 2
    down = gap if heights[0] > heights[1] else -gap
    texts = heights[0] + down, heights[1] - down
    values = {"source": view.source, "limit": view.limit}
    for (kind, value), height, text in zip(values.items(), heights, texts, strict=True):
        yield horizontal(height, area, kind)
        yield note(f"{kind} {value:.4g}", area.right + 8, text + 4)


def _front(view: Tradeoff, x: Scale, y: Scale, area: Area) -> Shape:
    """The Pareto front as a staircase."""
    found: list[tuple[float, float]] = []
    level = area.bottom
    for point in view.front():
        left, height = x(point.cost.value), y(point.quality.value)
        found += [(left, level), (left, height)]
        level = height
    return polyline([*found, (area.right, level)], "front")


def _interval_bars(point: Point, x: Scale, y: Scale) -> Iterator[Shape]:
    """The intervals of quality and cost, where they are longer than a pixel."""
    center, level, cap = x(point.cost.value), y(point.quality.value), 4.0
    low, high = y(point.quality.low), y(point.quality.high)
    left, right = x(point.cost.low), x(point.cost.high)
    path = ""
    if abs(high - low) > 1:
        path += f"M{center:.1f} {low:.1f}V{high:.1f}"
        path += "".join(f"M{center - cap:.1f} {end:.1f}h{2 * cap:g}" for end in (low, high))
    if right - left > 1:
        path += f"M{left:.1f} {level:.1f}H{right:.1f}"
        path += "".join(f"M{end:.1f} {level - cap:.1f}v{2 * cap:g}" for end in (left, right))
    if path:
        yield shape("path", d=path, class_=f"bar {point.verdict}")


def _point(view: Tradeoff, point: Point, x: Scale, y: Scale) -> Iterator[Shape]:
    title = (
        f"{point.recipe} ({point.verdict}): {view.cost} {significant(point.cost.value)}, "
        f"{view.quality} {significant(point.quality.value, 4)}"
    )
    return _mark(point.verdict, x(point.cost.value), y(point.quality.value), title)


def _mark(verdict: VariantVerdict, x: float, y: float, title: str = "") -> Iterator[Shape]:
    """The mark of a verdict: its form says it as well as its colour."""
    kind = f"mark {verdict}"
    if verdict is VariantVerdict.CHOSEN:
        yield shape("circle", cx=x, cy=y, r=9, class_="ring")
        yield shape("circle", title=title, cx=x, cy=y, r=5.5, class_=kind)
    elif verdict is VariantVerdict.PASSES:
        yield shape("circle", title=title, cx=x, cy=y, r=5, class_=kind)
    else:
        cross = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        yield shape("path", title=title, d=cross, class_=kind)


def _labels(view: Tradeoff, x: Scale, y: Scale, area: Area) -> Iterator[Shape]:
    """The recipes' names beside their points, with a line to a point that is farther away."""
    centers = [(x(point.cost.value), y(point.quality.value)) for point in view.points]
    texts = [_label_text(point, y) for point in view.points]
    boxes = place_labels(centers, texts, area)
    for point, (px, py), text, box in zip(view.points, centers, texts, boxes, strict=True):
        middle = (box.top + box.bottom) / 2
        if abs(middle - py) > 1.5 * _TEXT_HEIGHT:
            near = box.left if box.left > px else box.right
            yield shape("line", x1=px, y1=py, x2=near, y2=middle, class_="leader")
        yield note(text, box.left, middle + 4.5, kind=f"name {point.verdict}")


def _label_text(point: Point, y: Scale) -> str:
    if y.low <= point.quality.value <= y.high:
        return point.recipe
    return f"{point.recipe} ({significant(point.quality.value)}, off the scale)"


def place_labels(
    points: Sequence[tuple[float, float]], texts: Sequence[str], frame: Area
) -> list[Area]:
    """Place each text beside its point in `frame`, as near as it covers no point or other text."""
    taken = [Area(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    for (x, y), text in zip(points, texts, strict=True):
        width = len(text) * _CHARACTER
        sides = [left for left in (x + 6, x - 6 - width) if frame.left < left < frame.right - width]
        tops = (y - 18 + 4.0 * step * up for step in count() for up in (-1, 1))
        boxes = (
            Area(left, top, left + width, top + _TEXT_HEIGHT)
            for top in tops
            for left in sides or [x + 6]
        )
        taken.append(next(box for box in boxes if not any(map(box.overlaps, taken))))
    return taken[len(points) :]


def _legend(view: Tradeoff, area: Area, y: float) -> Iterator[Shape]:
    """The marks of the verdicts that occur, what the bars are, and the front."""
    x = area.left
    for verdict in VariantVerdict:
        if any(point.verdict is verdict for point in view.points):
            yield from _mark(verdict, x + 8, y - 4)
            yield note(verdict, x + 22, y)
            x += 48 + len(verdict) * _CHARACTER
    if view.bars:
        yield note(f"bars: {view.bars}", x, y)
    yield shape("path", d=f"M{area.right - 104:.1f} {y - 4:.1f}h24", class_="front")
    yield note("Pareto front", area.right - 74, y)
