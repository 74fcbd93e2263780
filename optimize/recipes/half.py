"""Numbers of 16 bits: which type, rounding to it, and what does not fit."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Half = Literal["fp16", "bf16"]

FP16_MAX = float(np.finfo(np.float16).max)

# Where the code of a model cannot write infinity it writes the end of fp32's range.
_INFINITE = 1e30


def to_half(array: np.ndarray, half: Half) -> np.ndarray:
    """`array` rounded to the 16-bit type; nothing but infinity overflows, nothing but 0 is 0.

    A finite value past the range becomes its end, one too small for it its smallest.
    """
    import ml_dtypes

    kind: Any = np.float16 if half == "fp16" else ml_dtypes.bfloat16
    finfo: Any = ml_dtypes.finfo
    info = finfo(kind)
    top, least = float(info.max), float(info.smallest_subnormal)
    wide = np.where(np.isfinite(array), np.clip(array, -top, top), array)
    wide = np.where((wide != 0) & (np.abs(wide) < least), np.copysign(least, wide), wide)
    return wide.astype(kind)


def is_beyond(array: np.ndarray, limit: float) -> bool:
    """Whether a finite value is larger than `limit` and no stand-in for infinity."""
    size = np.abs(array)
    return bool(((size > limit) & (size < _INFINITE)).any())
