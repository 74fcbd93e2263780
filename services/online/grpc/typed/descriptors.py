"""A layout as protobuf's descriptors and message classes, made when a server starts.

The server reads and writes another form of the same messages, in which packed floats are raw
bytes: on the wire it is the same, and no value becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from mlctl.services.online.grpc.typed.layout import DIGEST, FIRST, Field, TypedLayout

_TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "bool": FieldDescriptorProto.TYPE_BOOL,
        "int32": FieldDescriptorProto.TYPE_INT32,
        "int64": FieldDescriptorProto.TYPE_INT64,
        "uint32": FieldDescriptorProto.TYPE_UINT32,
        "uint64": FieldDescriptorProto.TYPE_UINT64,
        "float": FieldDescriptorProto.TYPE_FLOAT,
        "double": FieldDescriptorProto.TYPE_DOUBLE,
        "bytes": FieldDescriptorProto.TYPE_BYTES,
        "string": FieldDescriptorProto.TYPE_STRING,
    }
)


@dataclass(frozen=True, slots=True)
class TypedMessages:
    """The request as callers know it, and both messages in the server's own form."""

    request: type[Any]
    raw_request: type[Any]
    raw_response: type[Any]


def make_messages(layout: TypedLayout) -> TypedMessages:
    """Return the classes of a layout's messages, in descriptor pools of their own."""
    plain, raw = (_classes(layout, raw=raw) for raw in (False, True))
    return TypedMessages(plain["Request"], raw["Request"], raw["Response"])


def make_file(layout: TypedLayout, *, raw: bool = False) -> Any:
    """Return the file that defines the service, or the same in the server's own form."""
    file: Any = FileDescriptorProto(name=layout.path, package=layout.package, syntax="proto3")
    file.message_type.append(_message("Request", layout.request, 1, raw=raw))
    answer = _message("Response", layout.response, 2, raw=raw)
    answer.field.insert(0, _field(DIGEST, 1, "string", repeated=False))
    file.message_type.append(answer)
    method = file.service.add(name="Predictor").method.add(name="Predict")
    method.input_type = f".{layout.package}.Request"
    method.output_type = f".{layout.package}.Response"
    return file


def _classes(layout: TypedLayout, *, raw: bool) -> dict[str, type[Any]]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(make_file(layout, raw=raw).SerializeToString())
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{layout.package}.{name}")
        )
        for name in ("Request", "Response")
    }


def _message(name: str, fields: Iterable[Field], reserved: int, *, raw: bool) -> Any:
    message: Any = DescriptorProto(name=name)
    message.reserved_range.add(start=reserved, end=FIRST)
    for each in fields:
        scalar = None if raw and each.is_raw else each.scalar
        kind, repeated = scalar or "bytes", scalar is not None
        message.field.append(_field(each.name, each.number, kind, repeated=repeated))
        if each.shape:
            message.field.append(_field(each.shape, each.number + 1, "int64", repeated=True))
    return message


def _field(name: str, number: int, kind: str, *, repeated: bool) -> Any:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    made: Any = FieldDescriptorProto(name=name, number=number, label=label, type=_TYPES[kind])
    first, *rest = name.split("_")
    made.json_name = first + "".join(part[:1].upper() + part[1:] for part in rest)
    return made
