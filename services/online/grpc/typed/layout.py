"""How a model's tensors become fields of messages, for the server and for the printed .proto.

The package is `mlctl.models.NAME.v1`. Tensor number k, from 0 on, is field 11 + 2k and its shape
the field after that, so a tensor that is added at the end changes no other.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlctl.bundle.tensors import DYNAMIC, Datatype
from mlctl.services.online.openapi.model import ApiModel, ApiTensor

FIRST = 11  # lower numbers are reserved for fields that are not tensors
DIGEST = "model_digest"
_SCALARS: Mapping[Datatype, str] = MappingProxyType(
    {
        Datatype.BOOL: "bool",
        Datatype.INT8: "int32",
        Datatype.INT16: "int32",
        Datatype.INT32: "int32",
        Datatype.INT64: "int64",
        Datatype.UINT16: "uint32",
        Datatype.UINT32: "uint32",
        Datatype.UINT64: "uint64",
        Datatype.FP32: "float",
        Datatype.FP64: "double",
        Datatype.BYTES: "bytes",
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor in a message: its field's name and number, and the name of its shape's field.

    `scalar` is protobuf's name of one value; None if all values are one field of raw bytes.
    `shape` is None if the shape of the tensor is fixed.
    """

    tensor: ApiTensor
    name: str
    number: int
    scalar: str | None
    shape: str | None

    @property
    def is_raw(self) -> bool:
        """Whether the values are the tensor's own bytes on the wire, as packed floats are, too."""
        return self.scalar in (None, "float", "double")


@dataclass(frozen=True, slots=True)
class TypedLayout:
    """The typed service of one model."""

    package: str
    request: tuple[Field, ...]
    response: tuple[Field, ...]

    @property
    def service(self) -> str:
        """The full name of the service."""
        return f"{self.package}.Predictor"

    @property
    def path(self) -> str:
        """The file that defines it."""
        folders = self.package.split(".")
        return f"{'/'.join(folders)}/{folders[-2]}.proto"


def lay_out(model: ApiModel) -> TypedLayout:
    """Return the service of `model`."""
    package = f"mlctl.models.{package_name(model.name)}.v1"
    return TypedLayout(package, _fields(model.inputs), _fields(model.outputs, DIGEST))


def package_name(name: str) -> str:
    """`name` as a part of a package's name; names that differ in punctuation have the same."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if not plain or plain[0].isdigit():
        plain = f"model_{plain}".rstrip("_")
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def _fields(tensors: Iterable[ApiTensor], *others: str) -> tuple[Field, ...]:
    taken = {_key(name) for name in others}
    made = []
    for number, tensor in enumerate(tensors):
        first = name = tensor.field.lower()
        again = 2
        while _key(name) in taken or _key(f"{name}_shape") in taken:
            name, again = f"{first}_{again}", again + 1
        shape = f"{name}_shape" if DYNAMIC in tensor.shape else None
        taken |= {_key(each) for each in (name, shape) if each}
        made.append(Field(tensor, name, FIRST + 2 * number, _SCALARS.get(tensor.dtype), shape))
    return tuple(made)


def _key(name: str) -> str:
    """Return the name without underscores, as JSON has it; no two fields may have the same."""
    return name.replace("_", "").lower()
