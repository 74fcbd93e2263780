"""Whether two answers of one model differ by rounding only."""

from __future__ import annotations

import numpy as np

_ABSOLUTE = 1e-6
_OF_COLUMN = 1e-3
_OF_TENSOR = 1e-5


def close(want: np.ndarray, have: np.ndarray) -> bool:
    """Return whether two answers differ by rounding only; integers and booleans must be equal.

    Rounding is judged against the scale of an output, not value by value, because
    a value near zero may be the difference of two large ones: 1e-3 of the largest value in
    its column (last dimension) plus 1e-5 of the largest in the tensor, or the type's
    precision if that is coarser (1e-3 for float16).
    """
    if want.shape != have.shape or want.dtype != have.dtype:
        return False
    if not np.issubdtype(want.dtype, np.floating):
        return bool(np.array_equal(want, have))
    size = np.abs(np.where(np.isfinite(want), want, 0)).astype(np.float64)
    column = size.max(axis=tuple(range(max(size.ndim - 1, 1))), initial=0.0)
    of_tensor = max(_OF_TENSOR, float(np.finfo(want.dtype).eps))
    allowed = _ABSOLUTE + _OF_COLUMN * column + of_tensor * size.max(initial=0.0)
    return bool(np.isclose(have, want, rtol=0.0, atol=allowed, equal_nan=True).all())
