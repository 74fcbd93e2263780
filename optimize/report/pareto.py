"""The Pareto picture: quality against cost, with uncertainty, the limit and the front."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from optimize.report import axes
from optimize.report.axes import PlotArea
from optimize.report.labels import CHARACTER, HEIGHT, Box, Label, place_labels
from optimize.report.markup import Markup, join, tag
from optimize.report.numbers import significant
from optimize.report.points import Picture, Point, front
from optimize.report.record import VariantVerdict
from optimize.report.scale import Scale, fit

_WIDTH, _HEIGHT = 860.0, 440.0
_FRAME = PlotArea(left=72, top=40, right=_WIDTH - 118, bottom=_HEIGHT - 92)
_CAP = 4.0


@dataclass(frozen=True, slots=True)
class _Canvas:
    """The picture with its two scales."""

    view: Picture
    x: Scale
    y: Scale

    def place(self, point: Point) -> tuple[float, float]:
        return self.x(point.x[1]), self.y(point.y[1])

    def beyond(self, point: Point) -> bool:
        """Whether the point lies below the drawn part, and so stands at its edge."""
        return not self.y.low <= point.y[1] <= self.y.high


def pareto(view: Picture) -> Markup:
    """The picture as SVG; every point's numbers are in its title."""
    canvas = _canvas(view)
    places = [canvas.place(point) for point in view.points]
    texts = [_text(canvas, point) for point in view.points]
    label_frame = Box(_FRAME.left + 4, _FRAME.top + 2, _FRAME.right - 4, _FRAME.bottom - 4)
    labels = place_labels(places, texts, label_frame, _obstacles(canvas))
    return axes.svg(
        _WIDTH,
        _HEIGHT,
        f"{view.y_title} against {view.x_title}",
        _description(view),
        _grid(canvas),
        _lines(canvas),
        _front(canvas),
        *(_bars(canvas, point) for point in view.points),
        *(_mark(canvas, point) for point in view.points),
        *map(_label, labels, places, texts, [point.verdict for point in view.points]),
        _legend(view),
    )


def _canvas(view: Picture) -> _Canvas:
    x = fit(
        (end for point in view.points for end in point.x),
        _FRAME.left,
        _FRAME.right,
        positive=True,
    )
    start, end = _FRAME.bottom, _FRAME.top
    y = fit(view.window, *((end, start) if view.falling else (start, end)))
    return _Canvas(view, x, y)


def _description(view: Picture) -> str:
    told = ", ".join(
        f"{point.recipe} ({point.verdict}): {significant(point.x[1])}, {significant(point.y[1], 4)}"
        for point in view.points
    )
    return f"Better is up and to the left. {told}."


def _grid(canvas: _Canvas) -> Markup:
    view = canvas.view
    up = "lower is better, so up is better" if view.falling else "up is better"
    return join(
        axes.rows(canvas.y, _FRAME),
        axes.columns(canvas.x, _FRAME),
        tag("text", f"{view.y_title}, {up}", x=0, y=18, class_="axis"),
        tag(
            "text",
            f"{view.x_title}, left is better",
            x=_FRAME.right,
            y=_FRAME.bottom + 38,
            text_anchor="end",
            class_="axis",
        ),
    )


def _lines(canvas: _Canvas) -> Markup:
    """The source model's quality and the limit, named in the margin beside them."""
    view = canvas.view
    lines = {"source": view.source, "limit": view.limit}
    places = _apart(canvas.y(view.source), canvas.y(view.limit))
    return join(
        *(axes.horizontal(canvas.y(value), _FRAME, kind) for kind, value in lines.items()),
        *(
            axes.legend(f"{kind} {value:.4g}", _FRAME.right + 8, y + 4)
            for (kind, value), y in zip(lines.items(), places, strict=True)
        ),
    )


def _apart(first: float, second: float) -> tuple[float, float]:
    """Two heights moved apart so far that words at them do not touch."""
    missing = max(0.0, HEIGHT - abs(first - second)) / 2
    if first > second:
        return first + missing, second - missing
    return first - missing, second + missing


def _obstacles(canvas: _Canvas) -> list[Box]:
    """What labels must not cover: the front, and the bars of all points."""
    corners = _corners(canvas)
    found = [
        Box(min(a[0], b[0]) - 1, min(a[1], b[1]) - 1, max(a[0], b[0]) + 1, max(a[1], b[1]) + 1)
        for a, b in pairwise(corners)
    ]
    for point in canvas.view.points:
        x, y = canvas.place(point)
        low, high = sorted((canvas.y(point.y[0]), canvas.y(point.y[2])))
        found.append(Box(x - _CAP, low, x + _CAP, high))
        found.append(Box(canvas.x(point.x[0]), y - _CAP, canvas.x(point.x[2]), y + _CAP))
    return found


def _front(canvas: _Canvas) -> Markup:
    """The staircase that no variant is beyond."""
    words = " ".join(f"{x:.1f},{y:.1f}" for x, y in _corners(canvas))
    return tag("polyline", points=words, class_="front")


def _corners(canvas: _Canvas) -> list[tuple[float, float]]:
    """The staircase's corners, from the bottom of the picture to its right edge."""
    found: list[tuple[float, float]] = []
    level = _FRAME.bottom
    for x, y in map(canvas.place, front(canvas.view)):
        found += [(x, level), (x, y)]
        level = y
    return [*found, (_FRAME.right, level)]


def _bars(canvas: _Canvas, point: Point) -> Markup:
    x, y = canvas.place(point)
    low, high = canvas.y(point.y[0]), canvas.y(point.y[2])
    left, right = canvas.x(point.x[0]), canvas.x(point.x[2])
    path = []
    if abs(high - low) > 1:
        path.append(f"M{x:.1f} {low:.1f}V{high:.1f}")
        path += [f"M{x - _CAP:.1f} {end:.1f}h{2 * _CAP:.1f}" for end in (low, high)]
    if right - left > 1:
        path.append(f"M{left:.1f} {y:.1f}H{right:.1f}")
        path += [f"M{end:.1f} {y - _CAP:.1f}v{2 * _CAP:.1f}" for end in (left, right)]
    return tag("path", d="".join(path), class_=f"bar {point.verdict}")


def _mark(canvas: _Canvas, point: Point) -> Markup:
    x, y = canvas.place(point)
    cost, quality = significant(point.x[1], 4), significant(point.y[1], 5)
    title = tag(
        "title",
        f"{point.recipe}, {point.verdict}: {canvas.view.x_title} {cost}, "
        f"{canvas.view.y_title} {quality}",
    )
    return tag("g", title, axes.mark(point.verdict, x, y))


def _text(canvas: _Canvas, point: Point) -> str:
    if not canvas.beyond(point):
        return point.recipe
    return f"{point.recipe} ({significant(point.y[1])}, off the scale)"


def _label(label: Label, place: tuple[float, float], text: str, verdict: VariantVerdict) -> Markup:
    box = label.box
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    words = tag("text", text, x=x, y=y + 4.5, text_anchor="middle", class_=f"name {verdict}")
    if not label.leader:
        return words
    near = min(max(place[0], box.left), box.right), min(max(place[1], box.top), box.bottom)
    line = tag("line", x1=place[0], y1=place[1], x2=near[0], y2=near[1], class_="leader")
    return join(line, words)


def _legend(view: Picture) -> Markup:
    """Which mark means what, for the verdicts that occur, and what the bars are."""
    parts, x, y = [], _FRAME.left, _HEIGHT - 16
    for verdict in VariantVerdict:
        if any(point.verdict is verdict for point in view.points):
            parts += [axes.mark(verdict, x + 8, y - 4), axes.legend(verdict, x + 22, y)]
            x += 48 + len(verdict) * CHARACTER
    bars = [words for words in (view.y_bars, view.x_bars) if words]
    told = f"bars: {', '.join(bars)}" if bars else ""
    parts.append(axes.legend(told, x, y))
    parts.append(tag("path", d=f"M{_FRAME.right - 104:.1f} {y - 4:.1f}h24", class_="front"))
    parts.append(axes.legend("Pareto front", _FRAME.right - 74, y))
    return join(*parts)
