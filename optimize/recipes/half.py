"""16-bit floats: rounding to them, and values that do not fit."""

from __future__ import annotations

import numpy as np

_FP16 = np.finfo(np.float16)
FP16_MAX = float(_FP16.max)

# Models write a large number such as -1e30 in masks where they mean infinity.
_INFINITE = 1e30


def to_half(array: np.ndarray) -> np.ndarray:
    """Round `array` to fp16; only infinity overflows, only 0 becomes 0.

    A finite value beyond the range becomes the largest value, one too small the smallest.
    """
    smallest = float(_FP16.smallest_subnormal)
    wide = np.where(np.isfinite(array), np.clip(array, -FP16_MAX, FP16_MAX), array)
    wide = np.where((wide != 0) & (np.abs(wide) < smallest), np.copysign(smallest, wide), wide)
    return wide.astype(np.float16)


def is_beyond(array: np.ndarray, limit: float) -> bool:
    """Return whether a value exceeds `limit` without standing for infinity."""
    size = np.abs(array)
    return bool(((size > limit) & (size < _INFINITE)).any())
