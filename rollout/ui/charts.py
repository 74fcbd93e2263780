"""The charts of the page: traffic split and latency of both slots over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from mlctl.core.charts.numbers import milliseconds
from mlctl.core.charts.scale import Scale, Tick, fit
from mlctl.core.charts.shapes import (
    Area,
    Chart,
    Shape,
    columns,
    horizontal,
    note,
    points,
    polyline,
    rows,
    shape,
)
from mlctl.rollout.domain.spec import Slot

_WIDTH, _HEIGHT = 460.0, 230.0
_AREA = Area(48, 30, _WIDTH - 16, _HEIGHT - 44)
_MIN_SECONDS = 10.0

Point = tuple[float, float]
"""Seconds since the start of the rollout, and a value."""


def traffic_chart(weights: Sequence[Point], until: float, candidate: Slot) -> Chart:
    """Draw the percent of traffic per slot from the start to `until`, in seconds.

    `weights` are the candidate's, at least one, in percent; each holds until the next one.
    """
    x, ticks, axis = _time(until)
    y = Scale(0.0, 100.0, _AREA.bottom, _AREA.top)
    steps: list[Point] = []
    for (begin, weight), (end, _) in pairwise([*weights, (until, 0.0)]):
        steps += [(x(begin), y(weight)), (x(end), y(weight))]
    shapes: list[Shape] = []
    for edge, slot in ((_AREA.bottom, candidate), (_AREA.top, candidate.other)):
        corners = [*steps, (steps[-1][0], edge), (steps[0][0], edge)]
        shapes.append(shape("polygon", points=points(corners), class_=f"share {slot}"))
    shapes += [
        *rows(y, _AREA, 4),
        *columns(ticks, x, _AREA),
        polyline(steps, "edge"),
        shape("text", "percent of the traffic", x=0, y=16, class_="axis"),
        note(axis, _AREA.right, _AREA.bottom + 36, "end"),
    ]
    text = f"The candidate's share over time; at the end {weights[-1][1]:.0f} % on {candidate}."
    return Chart("Traffic split", text, _WIDTH, _HEIGHT, tuple(shapes))


def latency_chart(
    latencies: Mapping[Slot, Sequence[Point]], limit_ms: float | None, until: float
) -> Chart | None:
    """Draw the p99 of each slot, in milliseconds, and the limit; None before the first value."""
    values = [value for line in latencies.values() for _, value in line]
    if not values:
        return None
    x, ticks, axis = _time(until)
    limits = [] if limit_ms is None else [limit_ms]
    y = fit([*values, *limits], _AREA.bottom, _AREA.top, positive=True)
    shapes = [*rows(y, _AREA, 4), *columns(ticks, x, _AREA)]
    if limit_ms is not None:
        shapes.append(horizontal(y(limit_ms), _AREA, "limit"))
        shapes.append(note(f"limit {limit_ms:g}", _AREA.right, y(limit_ms) - 5, "end"))
    texts = []
    for slot, line in latencies.items():
        corners = [(x(seconds), y(value)) for seconds, value in line]
        shapes.append(polyline(corners, f"p99 {slot}"))
        shapes += [shape("circle", cx=cx, cy=cy, r=2.5, class_=f"dot {slot}") for cx, cy in corners]
        if line:
            texts.append(f"{slot}: at most {milliseconds(line[-1][1])}")
    shapes += [
        shape("text", "p99 in ms, at most", x=0, y=16, class_="axis"),
        note(axis, _AREA.right, _AREA.bottom + 36, "end"),
    ]
    text = f"Last values: {'; '.join(texts)}."
    return Chart("Latency", text, _WIDTH, _HEIGHT, tuple(shapes))


def _time(until: float) -> tuple[Scale, tuple[Tick, ...], str]:
    """Return the axis in seconds, its ticks in the unit that fits, and the unit's text."""
    until = max(until, _MIN_SECONDS)
    size, unit = next(
        (size, unit)
        for size, unit, limit in ((1, "seconds", 120), (60, "minutes", 7200), (3600, "hours", None))
        if limit is None or until <= limit
    )
    ticks = Scale(0.0, until / size, _AREA.left, _AREA.right).ticks(5)
    scale = Scale(0.0, until, _AREA.left, _AREA.right)
    return (
        scale,
        tuple(Tick(tick.value * size, tick.label) for tick in ticks),
        f"{unit} since start",
    )
