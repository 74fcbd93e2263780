"""Optimization profiles: the range of shapes of an engine, and the shape it is tuned for.

There is one profile, from the bucket table that the scheduler and the warm-up use: from one row to
the largest bucket, tuned for the middle one. A single profile serves every batch size without
switching contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlctl.bundle.manifest import Batching
from mlctl.bundle.tensors import DYNAMIC

PROVIDER = "tensorrt"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Minimum, optimum (what the engine is tuned for) and maximum size of a dynamic dimension."""

    minimum: int
    optimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.optimum <= self.maximum:
            raise ValueError(
                f"a range needs 1 <= minimum <= optimum <= maximum, not "
                f"{self.minimum}, {self.optimum}, {self.maximum}"
            )


# The lengths that text encoders of the BERT family are trained with.
DEFAULT_LENGTHS = SizeRange(1, 128, 512)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Minimum, optimum and maximum shape of one input."""

    minimum: Shape
    optimum: Shape
    maximum: Shape


Profile = Mapping[str, Shapes]


def make_profile(
    inputs: Mapping[str, Shape], batching: Batching | None, lengths: SizeRange = DEFAULT_LENGTHS
) -> Profile:
    """Return the profile of those `inputs` (shapes by name, -1 is dynamic) that need one.

    A dynamic first dimension is the batch, with `batching`'s range (1 row without one);
    every other dynamic dimension gets `lengths`.
    """
    rows = batch_range(batching)
    return {
        name: Shapes(
            _fill(shape, rows.minimum, lengths.minimum),
            _fill(shape, rows.optimum, lengths.optimum),
            _fill(shape, rows.maximum, lengths.maximum),
        )
        for name, shape in inputs.items()
        if DYNAMIC in shape
    }


def batch_range(batching: Batching | None) -> SizeRange:
    """Return the range from one row to the largest bucket, with the middle one as the optimum."""
    if batching is None:
        return SizeRange(1, 1, 1)
    buckets = batching.buckets
    return SizeRange(1, buckets[len(buckets) // 2], batching.max_rows)


def render_shapes(profile: Profile) -> dict[str, str]:
    """Return the profile as `min`, `opt` and `max` texts, each `input:1x3x8,other:1x5`."""
    if not profile:
        return {}
    return {
        "min": ",".join(_render(name, shapes.minimum) for name, shapes in profile.items()),
        "opt": ",".join(_render(name, shapes.optimum) for name, shapes in profile.items()),
        "max": ",".join(_render(name, shapes.maximum) for name, shapes in profile.items()),
    }


def _fill(shape: Shape, rows: int, length: int) -> Shape:
    return tuple(
        size if size != DYNAMIC else (rows if axis == 0 else length)
        for axis, size in enumerate(shape)
    )


def _render(name: str, shape: Shape) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"
