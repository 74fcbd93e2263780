"""Scales, zero points and integer weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from optimize.recipes.quantize.form import affine, dequantize_weight, quantize_weight

finite = st.floats(-1e6, 1e6, width=32)


@given(finite, finite)
def test_affine__unsigned__covers_the_range_with_an_exact_zero(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    found = affine(low, high, "u8")
    assert 0 <= found.zero <= 255
    step = float(found.scale)
    assert step > 0
    if max(high, 0.0) - min(low, 0.0) > 1e-30:
        assert (0 - found.zero) * step <= min(low, 0.0) + 0.51 * step
        assert (255 - found.zero) * step >= max(high, 0.0) - 0.51 * step


@given(finite, finite)
def test_affine__signed__is_symmetric(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    found = affine(low, high, "s8")
    assert found.zero == 0
    largest = max(-low, high, 0.0)
    if largest > 1e-30:
        assert 127 * float(found.scale) == pytest.approx(largest, rel=1e-6)


def test_affine__a_range_of_zero__has_a_usable_scale() -> None:
    assert affine(0.0, 0.0, "u8").scale == 1
    assert affine(0.0, 0.0, "s8").scale == 1


@given(
    arrays.arrays(np.float32, st.tuples(*[st.integers(1, 5)] * 3), elements=finite),
    st.integers(0, 2),
)
def test_quantize_weight__restored__is_within_half_a_step(weight: np.ndarray, axis: int) -> None:
    integers, scales = quantize_weight(weight, axis)
    assert integers.dtype == np.int8
    assert scales.shape == (weight.shape[axis],)
    assert (scales > 0).all()
    assert integers.min() >= -127
    error = np.abs(dequantize_weight(integers, scales, axis) - weight)
    steps = np.moveaxis(np.broadcast_to(scales, np.moveaxis(weight, axis, -1).shape), -1, axis)
    assert (error <= 0.5 * steps * (1 + 1e-4) + 1e-30).all()


def test_quantize_weight__channels__have_their_own_scales() -> None:
    weight = np.array([[1.0, 0.5], [0.011, 0.02]], np.float32)
    integers, scales = quantize_weight(weight, 0)
    assert integers.tolist() == [[127, 64], [70, 127]]
    assert scales * 127 == pytest.approx([1.0, 0.02])


def test_quantize_weight__a_dead_channel__has_a_usable_step() -> None:
    weight = np.array([[1.0, 0.5], [0.0, 0.0], [1e-12, 0.0]], np.float32)
    _, scales = quantize_weight(weight, 0)
    assert scales[1:] * 256 == pytest.approx([1 / 127, 1 / 127])
    # What ONNX Runtime does to a bias: units of both scales, in 32 bits.
    assert 3.0 / (0.01 * scales.min()) < 2**31
