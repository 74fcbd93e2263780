"""16-bit floats: rounding to them, and values that do not fit."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Half = Literal["fp16", "bf16"]

FP16_MAX = float(np.finfo(np.float16).max)

# Models write a large number such as -1e30 in masks where they mean infinity.
_INFINITE = 1e30


def to_half(array: np.ndarray, half: Half) -> np.ndarray:
    """Round `array` to the 16-bit type; only infinity overflows, only 0 becomes 0.

    A finite value beyond the range becomes the largest value, one too small the smallest.
    """
    import ml_dtypes

    kind: Any = np.float16 if half == "fp16" else ml_dtypes.bfloat16
    finfo: Any = ml_dtypes.finfo
    info = finfo(kind)
    top, smallest = float(info.max), float(info.smallest_subnormal)
    wide = np.where(np.isfinite(array), np.clip(array, -top, top), array)
    wide = np.where((wide != 0) & (np.abs(wide) < smallest), np.copysign(smallest, wide), wide)
    return wide.astype(kind)


def is_beyond(array: np.ndarray, limit: float) -> bool:
    """Return whether a value exceeds `limit` without standing for infinity."""
    size = np.abs(array)
    return bool(((size > limit) & (size < _INFINITE)).any())
