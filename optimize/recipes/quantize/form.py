"""8-bit arithmetic: scale and zero point of a range, and weights as integers.

Affine quantization as in Jacob et al., "Quantization and Training of Neural Networks
for Efficient Integer-Arithmetic-Only Inference" (2018): real = scale * (integer - zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

WEIGHT_MAX = 127

# A channel whose weights are nearly zero would get a scale so small that its bias, in units
# of that scale, overflows 32 bits; 1/256 of the layer's largest scale is precise enough.
_SMALLEST_CHANNEL = 2.0**-8


@dataclass(frozen=True, slots=True)
class QuantForm:
    """The operators whose inputs are quantized, and their integer type.

    `activation` is the integer type of activations: "s8" is symmetric (zero point 0, as
    TensorRT demands), "u8" asymmetric (fastest on x86). Weights are signed and per channel.
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
    """Return the parameters for `low` to `high`, widened to include 0, which stays exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    if activation == "s8":
        return Affine(_scale(max(-low, high) / 127), 0)
    scale = _scale((high - low) / 255)
    return Affine(scale, int(np.clip(np.rint(-low / float(scale)), 0, 255)))


def _scale(value: float) -> np.float32:
    """Return the scale as fp32, 1 if only zeros were observed."""
    scale = np.float32(value)
    return scale if scale >= np.finfo(np.float32).tiny else np.float32(1)


def quantize_weight(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `weight` as int8 with the fp32 scales [channels] of its channels along `axis`."""
    others = tuple(each for each in range(weight.ndim) if each != axis % weight.ndim)
    largest = np.abs(weight).max(axis=others).astype(np.float32)
    floor = max(float(largest.max()) * _SMALLEST_CHANNEL, float(np.finfo(np.float32).tiny) * 256)
    scales = np.maximum(largest, np.float32(floor)) / np.float32(WEIGHT_MAX)
    integers = np.rint(weight / _along(scales, axis, weight.ndim))
    return integers.clip(-WEIGHT_MAX, WEIGHT_MAX).astype(np.int8), scales


def restored_weight(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return the fp32 weight that the int8 form of `weight` stands for."""
    return dequantize_weight(*quantize_weight(weight, axis), axis)


def dequantize_weight(integers: np.ndarray, scales: np.ndarray, axis: int) -> np.ndarray:
    """Return the fp32 weight that `integers` and their `scales` stand for."""
    real: np.ndarray = integers.astype(np.float32) * _along(scales, axis, integers.ndim)
    return real


def _along(scales: np.ndarray, axis: int, rank: int) -> np.ndarray:
    shape = [1] * rank
    shape[axis] = -1
    return scales.reshape(shape)
