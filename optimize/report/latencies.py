"""Latency by batch size: one small picture for each variant, all on the same axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimize.metrics.latency import BatchLatency
from optimize.report import axes
from optimize.report.axes import PlotArea
from optimize.report.markup import Markup, tag
from optimize.report.numbers import milliseconds
from optimize.report.record import VariantRecord
from optimize.report.scale import Scale, Tick
from optimize.variant import Measured

_WIDTH = 860.0
_PANEL_HEIGHT = 210.0
_COLUMNS = 3
_ROOM = 0.08

Timed = Sequence[tuple[VariantRecord, Measured]]


def latencies(variants: Timed) -> Markup:
    """A panel for each variant: the median with the quartiles as a band; the others in grey.

    Every variant has latencies.
    """
    columns = min(_COLUMNS, len(variants))
    count = math.ceil(len(variants) / columns)
    width = _WIDTH / _COLUMNS
    ends = _ends([batch for _, found in variants for batch in found.latency])
    parts = []
    for number, (item, found) in enumerate(variants):
        frame = _frame(width * (number % columns), _PANEL_HEIGHT * (number // columns), width)
        others = [other.latency for each, other in variants if each is not item]
        parts.append(_panel(item, found.latency, others, frame, ends))
    return axes.svg(
        width * columns,
        _PANEL_HEIGHT * count,
        "Latency by batch size",
        "Median milliseconds for one batch; the table below has the same numbers.",
        *parts,
    )


def _frame(left: float, top: float, width: float) -> PlotArea:
    return PlotArea(left + 46, top + 30, left + width - 14, top + _PANEL_HEIGHT - 46)


def _ends(batches: Sequence[BatchLatency]) -> tuple[float, float, float, float]:
    """The least and largest batch and milliseconds of all variants."""
    sizes = [batch.batch for batch in batches]
    low = min(batch.q1_ms for batch in batches)
    return min(sizes), max(sizes), low, max(batch.q3_ms for batch in batches)


def _panel(
    item: VariantRecord,
    latency: Sequence[BatchLatency],
    others: Sequence[Sequence[BatchLatency]],
    frame: PlotArea,
    ends: tuple[float, float, float, float],
) -> Markup:
    x, y = _scales(frame, ends)
    sizes = tuple(Tick(batch.batch, str(batch.batch)) for batch in latency)
    return tag(
        "g",
        axes.rows(y, frame, 4),
        *(axes.column(tick, x, frame) for tick in sizes),
        *(_line(other, x, y, "other") for other in others),
        _band(latency, x, y),
        _line(latency, x, y, f"line {item.verdict}"),
        *(_dot(batch, x, y, item) for batch in latency),
        tag("text", item.recipe, x=frame.left, y=frame.top - 12, class_=f"name {item.verdict}"),
        axes.note("ms by batch size", frame.right, frame.bottom + 36),
    )


def _scales(frame: PlotArea, ends: tuple[float, float, float, float]) -> tuple[Scale, Scale]:
    small, large, low, high = ends
    room = max((high / low) ** _ROOM, 1.1)
    wide = max((large / small) ** _ROOM, 1.1)
    return (
        Scale(small / wide, large * wide, frame.left, frame.right, log=True),
        Scale(low / room, high * room, frame.bottom, frame.top, log=True),
    )


def _line(latency: Sequence[BatchLatency], x: Scale, y: Scale, kind: str) -> Markup:
    return tag(
        "polyline",
        points=" ".join(f"{x(each.batch):.1f},{y(each.median_ms):.1f}" for each in latency),
        class_=kind,
    )


def _band(latency: Sequence[BatchLatency], x: Scale, y: Scale) -> Markup:
    upper = [f"{x(each.batch):.1f},{y(each.q3_ms):.1f}" for each in latency]
    lower = [f"{x(each.batch):.1f},{y(each.q1_ms):.1f}" for each in reversed(latency)]
    return tag("polygon", points=" ".join([*upper, *lower]), class_="band")


def _dot(batch: BatchLatency, x: Scale, y: Scale, item: VariantRecord) -> Markup:
    told = (
        f"{item.recipe}, batch {batch.batch}: median {milliseconds(batch.median_ms)}, quartiles "
        f"{milliseconds(batch.q1_ms)} to {milliseconds(batch.q3_ms)}, {batch.runs} runs"
    )
    dot = tag("circle", cx=x(batch.batch), cy=y(batch.median_ms), r=3, class_=f"dot {item.verdict}")
    return tag("g", tag("title", told), dot)
