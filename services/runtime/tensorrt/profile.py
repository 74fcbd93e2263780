"""Optimization profiles: between which shapes an engine works, and for which it is tuned.

One profile, made from the bucket table that the batcher and the warm-up use: from a
single row to the largest bucket, tuned for the middle one, because a single profile
serves every batch size without switching contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bundle.manifest import Batching
from bundle.tensors import DYNAMIC

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The least, the usual and the greatest size of a dynamic dimension."""

    least: int
    usual: int
    greatest: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.usual <= self.greatest:
            raise ValueError(
                f"a range needs 1 <= least <= usual <= greatest, not "
                f"{self.least}, {self.usual}, {self.greatest}"
            )


# The lengths that text encoders of the BERT family are trained with.
DEFAULT_LENGTHS = SizeRange(1, 128, 512)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The least, the usual and the greatest shape of one input."""

    least: Shape
    usual: Shape
    greatest: Shape


Profile = Mapping[str, Shapes]


def make_profile(
    inputs: Mapping[str, Shape], batching: Batching | None, lengths: SizeRange = DEFAULT_LENGTHS
) -> Profile:
    """A profile over those of `inputs` (shapes by name, -1 is dynamic) that need one.

    A dynamic first dimension is the batch, with `batching`'s range (1 row without one);
    every other dynamic dimension gets `lengths`.
    """
    rows = batch_range(batching)
    return {
        name: Shapes(
            _fill(shape, rows.least, lengths.least),
            _fill(shape, rows.usual, lengths.usual),
            _fill(shape, rows.greatest, lengths.greatest),
        )
        for name, shape in inputs.items()
        if DYNAMIC in shape
    }


def batch_range(batching: Batching | None) -> SizeRange:
    """From one row to the largest bucket, tuned for the middle one of the table."""
    if batching is None:
        return SizeRange(1, 1, 1)
    buckets = batching.buckets
    return SizeRange(1, buckets[len(buckets) // 2], batching.max_rows)


def render_shapes(profile: Profile) -> dict[str, str]:
    """The profile as `min`, `opt` and `max` texts, each `input:1x3x8,other:1x5`."""
    if not profile:
        return {}
    return {
        "min": ",".join(_render(name, shapes.least) for name, shapes in profile.items()),
        "opt": ",".join(_render(name, shapes.usual) for name, shapes in profile.items()),
        "max": ",".join(_render(name, shapes.greatest) for name, shapes in profile.items()),
    }


def _fill(shape: Shape, rows: int, length: int) -> Shape:
    return tuple(
        size if size != DYNAMIC else (rows if axis == 0 else length)
        for axis, size in enumerate(shape)
    )


def _render(name: str, shape: Shape) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"
