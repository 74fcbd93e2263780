"""Placing labels beside points so that none covers another or a point. Pure geometry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CHARACTER = 6.9
HEIGHT = 16.0

_DISTANCES = (9.0, 20.0, 34.0, 50.0, 68.0, 88.0)
_DIRECTIONS = ((1, 0), (1, -1), (1, 1), (-1, 0), (-1, -1), (-1, 1), (0, -1), (0, 1))
_NEAR = _DISTANCES[0]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A text's place; `leader` says that it stands too far from its point to need no line."""

    box: Box
    leader: bool


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> tuple[Label, ...]:
    """A place for each text near its point, within `frame`, over no obstacle or other label.

    Greedy, in the order given: the first free place from near to far. Where none is free,
    the nearest one within the frame is taken all the same.
    """
    taken = [*obstacles, *(around(x, y, 6.0) for x, y in points)]
    placed = []
    for (x, y), text in zip(points, texts, strict=True):
        inside = [label for label in _candidates(x, y, len(text)) if frame.holds(label.box)]
        free = (label for label in inside if not any(map(label.box.overlaps, taken)))
        label = next(free, None) or (inside or list(_candidates(x, y, len(text))))[0]
        placed.append(label)
        taken.append(label.box)
    return tuple(placed)


def around(x: float, y: float, radius: float) -> Box:
    """The square around a point."""
    return Box(x - radius, y - radius, x + radius, y + radius)


def _candidates(x: float, y: float, characters: int) -> Iterator[Label]:
    width = characters * CHARACTER
    starts = {1: 0.0, 0: -width / 2, -1: -width}
    for distance in _DISTANCES:
        for right, down in _DIRECTIONS:
            left = x + right * distance + starts[right]
            top = y + down * (distance + HEIGHT / 4) - HEIGHT / 2
            box = Box(left, top, left + width, top + HEIGHT)
            yield Label(box, leader=distance > _NEAR)
