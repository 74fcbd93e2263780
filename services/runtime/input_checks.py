"""Checks of arrays against tensor specifications and input constraints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Axis
from bundle.tensors import DYNAMIC, Datatype, TensorSpec

_DTYPES: Mapping[Datatype, np.dtype] = MappingProxyType(
    {datatype: np.dtype(datatype.numpy_name) for datatype in Datatype}
)


def describe_mismatch(spec: TensorSpec, array: np.ndarray) -> str | None:
    """Return why `array` does not have the dtype or shape of `spec`, or None if it does."""
    if array.dtype != _DTYPES[spec.dtype]:
        return (
            f"tensor {spec.name!r}: dtype is {array.dtype}, "
            f"expected {spec.dtype.numpy_name} ({spec.dtype.value})"
        )
    return spec.mismatch(spec.dtype, array.shape)


def absent_rows(spec: TensorSpec, rows: int) -> np.ndarray:
    """Return the values of a column that is absent: NaN, or empty text."""
    return np.full((rows,), b"" if spec.dtype is Datatype.BYTES else np.nan, _DTYPES[spec.dtype])


def add_absent(inputs: dict[str, np.ndarray], optional: Iterable[TensorSpec]) -> None:
    """Add to `inputs` the absent columns of `optional`, with as many rows as the others have.

    Without any input there are no rows to add to.
    """
    if not inputs:
        return
    first = next(iter(inputs.values()))
    rows = len(first) if first.ndim else 0
    for spec in optional:
        if spec.name not in inputs:
            inputs[spec.name] = absent_rows(spec, rows)


def check_inputs(
    specs: Mapping[str, TensorSpec], inputs: Mapping[str, np.ndarray], *, batched: bool
) -> int:
    """Check `inputs` against `specs`; return their rows, 1 if they are not `batched`.

    INVALID_INPUT names the tensor, its value and the expected one.
    """
    if inputs.keys() != specs.keys():
        raise _wrong_names(specs, inputs)
    for name, array in inputs.items():
        if reason := describe_mismatch(specs[name], array):
            raise MlctlError(ErrorCode.INVALID_INPUT, reason)
    return _count_rows(inputs) if batched else 1


def check_max_length(
    specs: Mapping[str, TensorSpec], inputs: Mapping[str, np.ndarray], limit: int, *, batched: bool
) -> None:
    """Raise PAYLOAD_TOO_LARGE if a dynamic dimension of checked `inputs` is larger than `limit`.

    The rows of a `batched` model are not limited here: they wait in a queue with a limit.
    """
    for name, array in inputs.items():
        for axis, size in enumerate(array.shape):
            dynamic = specs[name].shape[axis] == DYNAMIC and not (batched and axis == 0)
            if dynamic and size > limit:
                raise MlctlError(
                    ErrorCode.PAYLOAD_TOO_LARGE,
                    f"tensor {name!r} has size {size} in dimension {axis}, the limit is {limit}",
                )


def check_lengths(groups: Sequence[Sequence[Axis]], inputs: Mapping[str, np.ndarray]) -> None:
    """Raise INVALID_INPUT unless the dimensions of each group have the same size."""
    for first, *others in groups:
        size = inputs[first.input].shape[first.axis]
        for other in others:
            found = inputs[other.input].shape[other.axis]
            if found != size:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"tensor {other.input!r} has size {found} in dimension {other.axis}, expected "
                    f"{size} as dimension {first.axis} of tensor {first.input!r}",
                )


def check_ranges(ranges: Mapping[str, tuple[int, int]], inputs: Mapping[str, np.ndarray]) -> None:
    """Raise INVALID_INPUT if a value of an input lies outside its range; both ends are allowed."""
    for name, (low, high) in ranges.items():
        array = inputs[name]
        if not array.size:
            continue
        for value in (int(array.min()), int(array.max())):
            if not low <= value <= high:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"tensor {name!r} has the value {value}, expected {low} to {high}",
                )


def _count_rows(inputs: Mapping[str, np.ndarray]) -> int:
    first_name, first = next(iter(inputs.items()))
    for name, array in inputs.items():
        if array.shape[0] != first.shape[0]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"tensor {name!r} has {array.shape[0]} rows, "
                f"tensor {first_name!r} has {first.shape[0]}",
            )
    if first.shape[0] == 0:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"tensor {first_name!r} has no rows")
    return int(first.shape[0])


def _wrong_names(specs: Mapping[str, TensorSpec], inputs: Mapping[str, np.ndarray]) -> MlctlError:
    expected = ", ".join(repr(name) for name in specs)
    if missing := [name for name in specs if name not in inputs]:
        problem = f"input {missing[0]!r} is missing"
    else:
        unknown = next(name for name in inputs if name not in specs)
        problem = f"input {unknown!r} is unknown"
    return MlctlError(ErrorCode.INVALID_INPUT, f"{problem}; the model's inputs are {expected}")
