from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.optimize.recipes.half import FP16_MAX, is_beyond, to_half

FLOATS = st.floats(width=32, allow_nan=False)


@given(value=FLOATS)
def test_to_half__infinity_and_zero__come_only_from_themselves(value: float) -> None:
    array = np.array([value], np.float32)
    narrow = to_half(array).astype(np.float32)
    assert np.isinf(narrow) == np.isinf(array)
    assert (narrow == 0) == (array == 0)
    assert np.sign(narrow) == np.sign(array)


@given(value=st.floats(2.0**-14, FP16_MAX, width=32), negative=st.booleans())
def test_to_half__within_the_range__is_the_nearest_number(value: float, negative: bool) -> None:
    array = np.array([-value if negative else value], np.float32)
    np.testing.assert_array_equal(to_half(array), array.astype(np.float16))


@pytest.mark.parametrize(
    ("value", "beyond"),
    [(65504.0, False), (-65505.0, True), (1e9, True), (-3.4e38, False), (-np.inf, False)],
)
def test_is_beyond__values_that_mean_infinity__are_not_beyond(value: float, beyond: bool) -> None:
    assert is_beyond(np.array([0.0, value], np.float32), FP16_MAX) is beyond
