"""SVG shapes with pixel coordinates: the parts that every chart is made of. Pure.

`svg.html.j2` draws a `Chart`, and `style.css` has the colours, also for a dark page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlctl.core.charts.scale import Scale, Tick


@dataclass(frozen=True, slots=True)
class Shape:
    """One SVG element; `text` is its content, `title` its tooltip."""

    element: str
    attributes: dict[str, str]
    text: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of `width` x `height` pixels; `description` says the same in words."""

    title: str
    description: str
    width: float
    height: float
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle in pixels: a plot area, or the space that a label takes."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Area) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def shape(element: str, text: str = "", title: str = "", **attributes: str | float) -> Shape:
    """Return an element with `text` as its content and `title` as its tooltip.

    Attribute names end in `_` where Python reserves them; numbers are written with two decimals.
    """
    values = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:.2f}"
        for name, value in attributes.items()
    }
    return Shape(element, values, text, title)


def note(text: str, x: float, y: float, anchor: str = "start", kind: str = "note") -> Shape:
    """Return a text that begins at `x`, or ends or has its middle there; `kind` is its class."""
    return shape("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def rows(scale: Scale, area: Area, count: int = 5) -> Iterator[Shape]:
    """Yield horizontal grid lines with about `count` ticks of a vertical axis."""
    for tick in scale.ticks(count):
        y = scale(tick.value)
        yield horizontal(y, area, "grid")
        yield note(tick.label, area.left - 8, y + 4, "end", "tick")


def columns(ticks: Sequence[Tick], scale: Scale, area: Area) -> Iterator[Shape]:
    """Yield vertical grid lines with the ticks of a horizontal axis."""
    for tick in ticks:
        x = scale(tick.value)
        yield shape("line", x1=x, x2=x, y1=area.top, y2=area.bottom, class_="grid")
        yield note(tick.label, x, area.bottom + 18, "middle", "tick")


def horizontal(y: float, area: Area, kind: str) -> Shape:
    """Return a line across `area` at the pixel `y`, of the CSS class `kind`."""
    return shape("line", x1=area.left, x2=area.right, y1=y, y2=y, class_=kind)


def polyline(corners: Sequence[tuple[float, float]], kind: str) -> Shape:
    """Return a line through `corners`, in pixels, of the CSS class `kind`."""
    return shape("polyline", points=points(corners), class_=kind)


def points(corners: Sequence[tuple[float, float]]) -> str:
    """Return `corners` as the attribute `points` of a polygon or polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
