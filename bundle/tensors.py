"""Tensor specifications: the names, Open Inference Protocol datatypes and shapes of a signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DYNAMIC = -1


class Datatype(StrEnum):
    """The datatypes of the Open Inference Protocol (V2)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def itemsize(self) -> int | None:
        """Bytes of one element on the wire; None for BYTES, whose elements differ."""
        return _FORMS[self][1]

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers."""
        return self.value.startswith(("INT", "UINT"))

    @property
    def numpy_name(self) -> str:
        """The numpy dtype of its arrays: `object` for BYTES, raw `uint16` bits for BF16."""
        return _FORMS[self][0]

    @classmethod
    def from_numpy_name(cls, name: str) -> Datatype:
        """Return the datatype of a numpy dtype's name (`float32` → FP32), else ValueError."""
        try:
            return _FROM_NUMPY[name]
        except KeyError:
            raise ValueError(f"numpy dtype {name!r} has no V2 datatype") from None


# The numpy dtype, and the bytes of one element on the wire.
_FORMS: Mapping[Datatype, tuple[str, int | None]] = MappingProxyType(
    {
        Datatype.BOOL: ("bool", 1),
        Datatype.UINT8: ("uint8", 1),
        Datatype.UINT16: ("uint16", 2),
        Datatype.UINT32: ("uint32", 4),
        Datatype.UINT64: ("uint64", 8),
        Datatype.INT8: ("int8", 1),
        Datatype.INT16: ("int16", 2),
        Datatype.INT32: ("int32", 4),
        Datatype.INT64: ("int64", 8),
        Datatype.FP16: ("float16", 2),
        Datatype.BF16: ("uint16", 2),
        Datatype.FP32: ("float32", 4),
        Datatype.FP64: ("float64", 8),
        Datatype.BYTES: ("object", None),
    }
)
_FROM_NUMPY: Mapping[str, Datatype] = MappingProxyType(
    {
        **{name: dtype for dtype, (name, _) in _FORMS.items() if dtype is not Datatype.BF16},
        "bfloat16": Datatype.BF16,
        "str": Datatype.BYTES,
        "bytes": Datatype.BYTES,
    }
)

Dimension = Annotated[int, Field(ge=DYNAMIC)]


class TensorSpec(BaseModel):
    """One tensor: `shape` has -1 for a dynamic dimension; the first one is the batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\w.\-/ ]+$")]
    dtype: Datatype
    shape: Annotated[tuple[Dimension, ...], Field(max_length=16)]

    def mismatch(self, dtype: Datatype, shape: Sequence[int]) -> str | None:
        """Return why a tensor of `dtype` and `shape` does not match, or None if it does."""
        if dtype is not self.dtype:
            return f"tensor {self.name!r}: datatype is {dtype.value}, expected {self.dtype.value}"
        fits = len(shape) == len(self.shape)
        if fits:
            for want, have in zip(self.shape, shape, strict=True):
                if want not in (DYNAMIC, have):
                    fits = False
        if not fits:
            return f"tensor {self.name!r}: shape is {list(shape)}, expected {list(self.shape)}"
        return None


class Signature(BaseModel):
    """The inputs and outputs of a model, with unique names on each side."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Annotated[tuple[TensorSpec, ...], Field(min_length=1, max_length=4096)]
    outputs: Annotated[tuple[TensorSpec, ...], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for side, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ValueError(f"{side} have duplicate names: {names}")
        return self

    @property
    def batched(self) -> bool:
        """Whether every input and output has a dynamic first dimension."""
        return all(spec.shape[:1] == (DYNAMIC,) for spec in (*self.inputs, *self.outputs))

    @property
    def bounded(self) -> bool:
        """Whether the number of rows determines the size of the inputs."""
        first = 1 if self.batched else 0
        return all(
            spec.dtype is not Datatype.BYTES and DYNAMIC not in spec.shape[first:]
            for spec in self.inputs
        )


# The datatypes that can represent a missing value: NaN, or empty text.
NULLABLE_DATATYPES = frozenset({Datatype.FP32, Datatype.FP64, Datatype.BYTES})


@dataclass(frozen=True, slots=True)
class MissingValues:
    """The inputs whose values may be missing: NaN stands for a number, empty text for text.

    A value of an input in `nullable` may be null. An input in `optional`, which is nullable too,
    may also be absent from a row, a request or a file.
    """

    nullable: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


NO_MISSING = MissingValues()
