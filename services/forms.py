"""Whether an array is the tensor that a specification describes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from bundle.tensors import Datatype, TensorSpec

_DTYPES: Mapping[Datatype, np.dtype] = MappingProxyType(
    {datatype: np.dtype(datatype.numpy_name) for datatype in Datatype}
)


def misfit(spec: TensorSpec, array: np.ndarray) -> str | None:
    """Why `array` has not the dtype or the shape of `spec`, as a sentence; None if it has both."""
    if array.dtype != _DTYPES[spec.dtype]:
        return (
            f"tensor {spec.name!r}: dtype is {array.dtype}, "
            f"expected {spec.dtype.numpy_name} ({spec.dtype.value})"
        )
    return spec.mismatch(spec.dtype, array.shape)
