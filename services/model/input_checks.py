"""Checks of arrays against tensor specifications and input constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from mlctl.bundle.manifest import Axis, Category, InputConstraints, split_column
from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError

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


class ValueChecks:
    """The constraints of a manifest on values, prepared to check batch after batch."""

    def __init__(self, constraints: InputConstraints) -> None:
        found: dict[str, list[Callable[[np.ndarray], str | None]]] = {}
        for name, (low, high) in constraints.ranges.items():
            found.setdefault(name, []).append(partial(_outside_range, low, high))
        for name in constraints.present:
            found.setdefault(name, []).append(_missing)
        for name in constraints.nonzero:
            found.setdefault(name, []).append(_zero)
        for name, limits in constraints.limits.items():
            found.setdefault(name, []).append(partial(_outside_limits, *limits))
        for name, values in constraints.categories.items():
            found.setdefault(name, []).append(partial(_unknown, _known(values)))
        for name, characters in constraints.forbidden_characters.items():
            pattern = re.compile(f"[{re.escape(characters)}]")
            found.setdefault(name, []).append(partial(_forbidden, pattern))
        self._checks = found

    def __bool__(self) -> bool:
        return bool(self._checks)

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise INVALID_INPUT with the tensor and the first value that is excluded."""
        for name, checks in self._checks.items():
            column, feature = split_column(name, inputs)
            array = inputs[column] if feature is None else inputs[column][:, feature]
            if not array.size:
                continue
            for problem_of in checks:
                if problem := problem_of(array):
                    raise MlctlError(ErrorCode.INVALID_INPUT, f"tensor {name!r} has {problem}")


def _outside_range(low: int, high: int, array: np.ndarray) -> str | None:
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            return f"the value {value}, expected {low} to {high}"
    return None


def _missing(array: np.ndarray) -> str | None:
    missing = (array == b"").any() if array.dtype == object else np.isnan(array).any()
    return "a missing value, which the model does not take" if missing else None


def _zero(array: np.ndarray) -> str | None:
    return None if array.all() else "the value 0, for which its answers are not proved"


def _outside_limits(low: float, high: float, array: np.ndarray) -> str | None:
    for value in (float(np.fmin.reduce(array, None)), float(np.fmax.reduce(array, None))):
        if value < low or value > high:
            return f"the value {value:.6g}, expected {low:.6g} to {high:.6g}"
    return None


def _known(values: Iterable[Category]) -> frozenset[Category | bytes]:
    return frozenset(value.encode() if isinstance(value, str) else value for value in values)


def _unknown(known: Container[Category | bytes], array: np.ndarray) -> str | None:
    for value in array.ravel().tolist():
        is_gap = value == b"" or value != value  # noqa: PLR0124 - NaN; gaps have their own check
        if value not in known and not is_gap:
            found = repr(value.decode(errors="replace")) if isinstance(value, bytes) else value
            return f"the value {found}, which is none of the categories that the model knows"
    return None


def _forbidden(pattern: re.Pattern[str], array: np.ndarray) -> str | None:
    for value in array.ravel().tolist():
        if found := pattern.search(value.decode(errors="replace")):
            return (
                f"a text with the character U+{ord(found[0]):04X}, for which its answers are not "
                "proved"
            )
    return None


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
