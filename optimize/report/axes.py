"""What all pictures share: the SVG around them, grid lines, ticks, marks and words."""

from __future__ import annotations

from dataclasses import dataclass

from optimize.report.markup import Child, Markup, join, tag
from optimize.report.record import VariantVerdict
from optimize.report.scale import Scale, Tick


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The plot area of a picture in pixels."""

    left: float
    top: float
    right: float
    bottom: float


def svg(width: float, height: float, title: str, description: str, *content: Child) -> Markup:
    """A picture that scales with the page and tells screen readers what it shows."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
    )


def rows(scale: Scale, frame: PlotArea, count: int = 5) -> Markup:
    """Horizontal grid lines with the ticks of a vertical axis."""
    parts: list[Child] = []
    for tick in scale.ticks(count):
        y = scale(tick.value)
        parts.append(horizontal(y, frame, "grid"))
        parts.append(_tick(tick.label, frame.left - 8, y + 4, "end"))
    return join(*parts)


def columns(scale: Scale, frame: PlotArea, count: int = 6) -> Markup:
    """Vertical grid lines with the ticks of a horizontal axis."""
    return join(*(column(tick, scale, frame) for tick in scale.ticks(count)))


def column(tick: Tick, scale: Scale, frame: PlotArea) -> Markup:
    """One vertical grid line with its tick."""
    x = scale(tick.value)
    line = tag("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, class_="grid")
    return join(line, _tick(tick.label, x, frame.bottom + 18, "middle"))


def horizontal(y: float, frame: PlotArea, kind: str) -> Markup:
    """A line across the plot area."""
    return tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_=kind)


def note(words: str, x: float, y: float) -> Markup:
    """Small words that end at `x`."""
    return tag("text", words, x=x, y=y, text_anchor="end", class_="note")


def legend(words: str, x: float, y: float) -> Markup:
    """Small words that start at `x`."""
    return tag("text", words, x=x, y=y, class_="note")


def mark(verdict: VariantVerdict, x: float, y: float) -> Markup:
    """The mark of a verdict: its form tells it as well as its colour does."""
    kind = f"mark {verdict}"
    if verdict is VariantVerdict.CHOSEN:
        ring = tag("circle", cx=x, cy=y, r=9, class_="ring")
        return join(ring, tag("circle", cx=x, cy=y, r=5.5, class_=kind))
    if verdict is VariantVerdict.PASSES:
        return tag("circle", cx=x, cy=y, r=5, class_=kind)
    return tag("path", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10", class_=kind)


def _tick(words: str, x: float, y: float, anchor: str) -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_="tick")
