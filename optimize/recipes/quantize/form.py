"""The arithmetic of 8 bits: from a range to a scale and a zero point, and weights to integers.

Affine quantization as in Jacob et al., "Quantization and Training of Neural Networks
for Efficient Integer-Arithmetic-Only Inference" (2018): real = scale * (integer - zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

WEIGHT_MAX = 127

# A channel whose weights are all but zero would get a scale so small that its bias, in units
# of that scale, overflows 32 bits; a step of 1/256 of the layer's own is precise enough.
_SMALLEST_CHANNEL = 2.0**-8


@dataclass(frozen=True, slots=True)
class QuantForm:
    """What is quantized and how.

    `activation` is the integer type of activations: "s8" is symmetric (zero point 0, as
    TensorRT demands), "u8" asymmetric (as x86 kernels are fastest with). `operators` are
    the types of nodes whose inputs are quantized; weights are signed and per channel.
    """

    activation: Literal["u8", "s8"]
    operators: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"{self.activation.upper()}S8 per channel"


@dataclass(frozen=True, slots=True)
class Affine:
    """A scale above 0 and a zero point within the integer type."""

    scale: np.float32
    zero: int


def affine(low: float, high: float, activation: Literal["u8", "s8"]) -> Affine:
    """The parameters that represent `low` to `high`, widened to include 0, which is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    if activation == "s8":
        return Affine(_scale(max(-low, high) / 127), 0)
    scale = _scale((high - low) / 255)
    return Affine(scale, int(np.clip(np.rint(-low / float(scale)), 0, 255)))


def _scale(value: float) -> np.float32:
    """As fp32, and 1 where nothing but zeros was seen."""
    scale = np.float32(value)
    return scale if scale >= np.finfo(np.float32).tiny else np.float32(1)


def quantize_weight(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """`weight` as int8 and the fp32 scales [channels] of its channels along `axis`."""
    others = tuple(each for each in range(weight.ndim) if each != axis % weight.ndim)
    largest = np.abs(weight).max(axis=others).astype(np.float32)
    floor = max(float(largest.max()) * _SMALLEST_CHANNEL, float(np.finfo(np.float32).tiny) * 256)
    scales = np.maximum(largest, np.float32(floor)) / np.float32(WEIGHT_MAX)
    integers = np.rint(weight / _along(scales, axis, weight.ndim))
    return integers.clip(-WEIGHT_MAX, WEIGHT_MAX).astype(np.int8), scales


def dequantize_weight(integers: np.ndarray, scales: np.ndarray, axis: int) -> np.ndarray:
    """The fp32 weight that `integers` and their `scales` stand for."""
    real: np.ndarray = integers.astype(np.float32) * _along(scales, axis, integers.ndim)
    return real


def _along(scales: np.ndarray, axis: int, rank: int) -> np.ndarray:
    shape = [1] * rank
    shape[axis] = -1
    return scales.reshape(shape)
