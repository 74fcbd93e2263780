"""Protobuf messages of one type of a compiled descriptor set.

`protoc --include_imports --descriptor_set_out=FILE` writes one. Fields are read as those of a JSON
message. Answers are JSON, or messages of the type that `answer` names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Datatype, Signature
from services.protocol.wire import invalid
from services.stream.base import Decoded
from services.stream.payloads import PayloadRequest
from services.stream.payloads.jsonrows import JsonWriter, too_long
from services.stream.payloads.objects import Carried, ObjectReader
from services.stream.payloads.schemas import require_registry_client


class ProtobufPayload:
    """Needs the options `descriptors`, a file, and `message`, the type's full name.

    With `framing=confluent` a message begins with a zero byte, the number of its schema and the
    index of its type in it; `message` must be that type.
    """

    name = "protobuf"

    def __init__(self, request: PayloadRequest, signature: Signature) -> None:
        options = request.options
        if not (options.get("descriptors") and options.get("message")):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "--payload protobuf needs the description of the messages",
                "Set --option descriptors=FILE, written by protoc --include_imports "
                "--descriptor_set_out=FILE, and --option message=PACKAGE.NAME.",
            )
        types = _types(Path(options["descriptors"]))
        self._type = _find(types, options["message"])
        self._framed = options.get("framing") == "confluent"
        if self._framed:
            require_registry_client()
        self._max_bytes = request.max_bytes
        fields = self._type.DESCRIPTOR.fields_by_name
        wire = [spec.name for spec in signature.inputs]
        for name in (*wire, *request.keep):
            if name not in fields:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"message {options['message']} has no field {name!r}",
                )
            if fields[name].message_type is not None:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"field {name!r} is a message: only plain values can be read",
                )
        self._fields = [(name, fields[name].is_repeated) for name in (*wire, *request.keep)]
        self._optional = {name for name, _ in self._fields if fields[name].has_presence}
        self._reader = ObjectReader(request, signature)
        answer = options.get("answer")
        self._writer: JsonWriter | ProtobufWriter = (
            ProtobufWriter(signature, request, _find(types, answer))
            if answer
            else JsonWriter(signature)
        )

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        rejected = too_long(values, self._max_bytes)
        documents: list[Any] = []
        for index, value in enumerate(values):
            document = None
            if index not in rejected:
                try:
                    document = self._read(value)
                except MlctlError as error:
                    rejected[index] = error.message
            documents.append(document)
        return self._reader.read(documents, rejected)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        return self._writer.encode(outputs, rows, carried)

    def _read(self, value: bytes) -> dict[str, Any]:
        from google.protobuf.message import DecodeError

        message = self._type()
        try:
            message.ParseFromString(_unframed(value) if self._framed else value)
        except DecodeError as error:
            raise invalid("the message is not of its type") from error
        found = {}
        for name, repeated in self._fields:
            if name in self._optional and not message.HasField(name):
                continue
            each = getattr(message, name)
            found[name] = list(map(_text, each)) if repeated else _text(each)
        return found


open_payload = ProtobufPayload


class ProtobufWriter:
    """Writes answers as messages of one type; its fields are named as outputs and kept fields."""

    def __init__(self, signature: Signature, request: PayloadRequest, kind: type[Any]) -> None:
        self._type = kind
        fields = kind.DESCRIPTOR.fields_by_name
        for name in (*(spec.name for spec in signature.outputs), *request.keep):
            if name not in fields or fields[name].message_type is not None:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT, f"the answer's message has no plain field {name!r}"
                )
        self._outputs = [
            (spec.name, fields[spec.name].is_repeated, _is_bytes(spec.dtype, fields[spec.name]))
            for spec in signature.outputs
        ]

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any]
    ) -> list[bytes]:
        """Return messages; the row of an output is flat, in row-major order."""
        if sum(rows) != len(rows) or any(each is not None and each.many for each in carried):
            raise invalid("an answer of several rows is not one message; send one row per message")
        columns = {
            name: outputs[name].reshape(len(rows), -1).tolist() for name, _, _ in self._outputs
        }
        found = []
        for index in range(len(rows)):
            message = self._type()
            about: Carried | None = carried[index] if carried else None
            try:
                for name, repeated, raw in self._outputs:
                    values = columns[name][index]
                    if values and isinstance(values[0], bytes) and not raw:
                        values = [each.decode() for each in values]
                    _set(message, name, values if repeated else values[0])
                for name, value in (about.kept if about else {}).items():
                    _set(message, name, value)
            except (TypeError, ValueError, IndexError) as error:
                raise invalid("an answer does not fit its message type") from error
            found.append(message.SerializeToString())
        return found


def _types(path: Path) -> Any:
    """Return the types of a descriptor set, in a pool of their own."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for file in files.file:
            pool.Add(file)
            pool.FindFileByName(file.name)
    except (OSError, DecodeError, TypeError, KeyError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{path} is not a complete descriptor set",
            "Make it with protoc --include_imports --descriptor_set_out=FILE.",
        ) from error
    return pool


def _find(types: Any, name: str) -> type[Any]:
    from google.protobuf import message_factory

    try:
        return message_factory.GetMessageClass(types.FindMessageTypeByName(name))
    except KeyError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"the descriptor set has no message {name!r}"
        ) from error


def _unframed(value: bytes) -> bytes:
    """Return the bytes after the number of the schema and the index of the type in it."""
    from confluent_kafka.schema_registry.serde import SchemaId
    from confluent_kafka.serialization import SerializationError

    try:
        return SchemaId("PROTOBUF").from_bytes(BytesIO(value)).read()
    except (SerializationError, struct.error, ValueError, EOFError) as error:
        raise invalid("the message does not begin with the number of a schema") from error


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid("a field's bytes are not UTF-8 text") from None


def _is_bytes(dtype: Datatype, field: Any) -> bool:
    return dtype is Datatype.BYTES and field.type == field.TYPE_BYTES


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, list):
        getattr(message, name).extend(value)
    elif value is not None:
        setattr(message, name, value)
