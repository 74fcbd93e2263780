"""Tensors: what the model takes and gives, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import InvalidInputError

Array = npt.NDArray[Any]
Request = TypeVar("Request")
Response = TypeVar("Response")

# BF16 is carried as its two bytes, for numpy has no such type.
NUMPY: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "uint16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor: its name and datatype in the protocol; -1 in `shape` is any size."""

    name: str
    field: str
    datatype: str
    shape: tuple[int, ...]

    def fit(self, value: object) -> Array:
        """`value` as an array of this tensor; `InvalidInputError` if it is none.

        An array must have the dtype already. Lists become arrays.
        """
        array = value if isinstance(value, np.ndarray) else self._from_list(value)
        if self.datatype == "BYTES":
            array = self._as_bytes(array)
        elif array.dtype != np.dtype(NUMPY[self.datatype]):
            wanted = NUMPY[self.datatype]
            raise InvalidInputError(
                f"{self.name!r} has dtype {array.dtype}, expected {wanted}",
                code="invalid_input",
                hint=f"Convert it: array.astype({wanted!r}).",
            )
        self.check_shape(array.shape)
        return array

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """`InvalidInputError` unless `shape` is one of this tensor's."""
        fits = len(shape) == len(self.shape) and all(
            want in (-1, have) for want, have in zip(self.shape, shape, strict=True)
        )
        if not fits:
            raise InvalidInputError(
                f"{self.name!r} has shape {list(shape)}, expected {list(self.shape)}",
                code="invalid_input",
                hint="A dimension of -1 may have any size; the others are fixed.",
            )

    def _from_list(self, value: object) -> Array:
        try:
            return np.array(value, dtype=NUMPY[self.datatype])
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(
                f"{self.name!r} is no array of {self.datatype}: {error}", code="invalid_input"
            ) from error

    def _as_bytes(self, array: Array) -> Array:
        values = np.empty(array.shape, dtype=object)
        for index, value in np.ndenumerate(array):
            if not isinstance(value, str | bytes):
                raise InvalidInputError(
                    f"{self.name!r} holds a {type(value).__name__}, expected bytes or str",
                    code="invalid_input",
                )
            values[index] = value.encode() if isinstance(value, str) else value
        return values


@dataclass(frozen=True, slots=True)
class Meta:
    """What an answer tells of itself.

    `model_digest` is the digest of the model that answered, `parameters` are those of the answer.
    """

    model_name: str
    model_digest: str
    request_id: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contract(Generic[Request, Response]):
    """A model as its client knows it, and how its requests and answers are made."""

    name: str
    digest: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    answer: Callable[[Mapping[str, Array], Meta], Response]

    def arrays(self, request: Request) -> dict[str, Array]:
        """The checked arrays of `request` by the names of the protocol."""
        return {spec.name: spec.fit(getattr(request, spec.field)) for spec in self.inputs}
