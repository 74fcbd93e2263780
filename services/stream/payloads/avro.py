"""Avro messages in Confluent's wire format: a zero byte, the schema's number, the record.

The fields of a record are read as those of a JSON message. Answers are JSON, or Avro if the option
`subject` names the subject of the registry for their schema.

While the schema registry does not answer, the run waits: no message becomes a dead letter because
of it.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import fastavro
import numpy as np
import orjson
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from httpx2 import TransportError

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.wire import invalid
from mlctl.services.stream.base import Decoded
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.payloads.jsonrows import JsonWriter, too_long
from mlctl.services.stream.payloads.objects import Carried, ObjectReader
from mlctl.services.tables.values import as_json

_T = TypeVar("_T")
AUTH_VARIABLE = "MLCTL_SCHEMA_REGISTRY_AUTH"
_TIMEOUT_SECONDS = 10
# Seconds before a missing schema is requested again: it may be registered at any moment.
_ABSENT_SECONDS = 10.0
_DEEPEST = 16
_HEAD = struct.Struct(">BI")
_PLAIN = ("null", "boolean", "long", "double", "string")
_INTS = frozenset({"int8", "uint8", "int16", "uint16", "int32"})


class AvroPayload:
    """Decodes records; needs the option `registry`, the URL of a schema registry."""

    name = "avro"

    def __init__(self, request: PayloadRequest, signature: Signature) -> None:
        url = request.options.get("registry")
        if not url:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "--payload avro needs a schema registry",
                "Set its URL: --option registry=http://localhost:8081.",
            )
        self._request = request
        self._registry = SchemaRegistry(url)
        self._reader = ObjectReader(request, signature)
        self._schemas: dict[int, Any] = {}
        self._wire = {spec.name for spec in signature.inputs}
        subject = request.options.get("subject")
        self._writer: JsonWriter | AvroWriter = (
            AvroWriter(signature, request, self._registry, subject)
            if subject
            else JsonWriter(signature)
        )

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        rejected = too_long(values, self._request.max_bytes)
        documents: list[Any] = []
        for index, value in enumerate(values):
            document = None
            if index not in rejected:
                try:
                    document = self._read(value)
                except MlctlError as error:
                    if error.code is not ErrorCode.INVALID_INPUT:
                        raise
                    rejected[index] = error.message
            documents.append(document)
        return self._reader.read([documents], rejected)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        return self._writer.encode(outputs, rows, carried)

    def _read(self, value: bytes) -> dict[str, Any]:
        if len(value) < _HEAD.size or value[0]:
            raise invalid("the message does not begin with the number of a schema")
        schema = self._schema(_HEAD.unpack_from(value)[1])
        content = io.BytesIO(value[_HEAD.size :])
        try:
            document = fastavro.schemaless_reader(content, schema, None)
        # Any error of the compiled code, for bytes that are not a record.
        except Exception as error:
            raise invalid("the message is not a record of its schema") from error
        if not isinstance(document, dict) or content.read(1):
            raise invalid("the message is not a record of its schema")
        return {name: self._plain(name, each) for name, each in document.items()}

    def _plain(self, name: str, value: Any) -> Any:
        """Return a field as JSON represents it."""
        if name in self._wire:
            return _texts(value)
        return as_json(value) if name in self._request.keep else None

    def _schema(self, number: int) -> Any:
        cached = self._schemas.get(number)
        if cached is not None:
            return cached
        found = self._registry.schema(number)
        if found.schema_type != "AVRO":
            raise invalid(f"schema {number} is not one of Avro")
        named: dict[str, Any] = {}
        try:
            for text in self._registry.referenced(found):
                fastavro.parse_schema(orjson.loads(text), named)
            parsed = fastavro.parse_schema(orjson.loads(str(found.schema_str)), named)
        except (fastavro.schema.SchemaParseException, KeyError, ValueError, TypeError) as error:
            raise invalid(f"schema {number} cannot be read") from error
        self._schemas[number] = parsed
        return parsed


open_payload = AvroPayload


class AvroWriter:
    """Writes answers as records of a schema of their own, registered when the run starts."""

    def __init__(
        self,
        signature: Signature,
        request: PayloadRequest,
        registry: SchemaRegistry,
        subject: str,
    ) -> None:
        self._names = [spec.name for spec in signature.outputs]
        self._texts = {s.name for s in signature.outputs if s.dtype is Datatype.BYTES}
        fields = [{"name": name, "type": list(_PLAIN), "default": None} for name in request.keep]
        fields += [{"name": spec.name, "type": _type(spec)} for spec in signature.outputs]
        document = {"type": "record", "name": "Answer", "namespace": "mlctl", "fields": fields}
        try:
            self._schema = fastavro.parse_schema(document)
        except fastavro.schema.SchemaParseException as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "an output or a kept field has a name that Avro does not take",
                "Remove --option subject: then answers are JSON.",
            ) from error
        number = registry.register(subject, orjson.dumps(document).decode())
        self._head = _HEAD.pack(0, number)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any]
    ) -> list[bytes]:
        if sum(rows) != len(rows) or any(each is not None and each.many for each in carried):
            raise invalid("an answer of several rows is not a record; send one row per message")
        columns = [
            _decoded(outputs[name]) if name in self._texts else outputs[name].tolist()
            for name in self._names
        ]
        found = []
        for index, row in enumerate(zip(*columns, strict=True)):
            about: Carried | None = carried[index] if carried else None
            record = dict(zip(self._names, row, strict=True)) | dict(about.kept if about else {})
            content = io.BytesIO(self._head)
            content.seek(0, io.SEEK_END)
            try:
                fastavro.schemaless_writer(content, self._schema, record)
            except (ValueError, TypeError, OverflowError) as error:
                raise invalid("a kept field cannot be represented in Avro") from error
            found.append(content.getvalue())
        return found


def _type(spec: TensorSpec) -> Any:
    """Return the Avro type of one row of an output."""
    kind = spec.dtype.numpy_name
    if spec.dtype in (Datatype.UINT64, Datatype.BF16):
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"output {spec.name!r}: Avro has no {spec.dtype.value}"
        )
    names = {"bool": "boolean", "object": "string", "float64": "double"}
    name: Any = names.get(kind, "float" if "float" in kind else "int" if kind in _INTS else "long")
    for _ in spec.shape[1:]:
        name = {"type": "array", "items": name}
    return name


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(each) for each in value] if value and not _number(value[0]) else value
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid("a field's bytes are not UTF-8 text") from None


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _decoded(array: np.ndarray) -> list[Any]:
    try:
        texts = np.array([each.decode() for each in array.flat], object)
    except UnicodeDecodeError:
        raise invalid("an answer is not UTF-8 text") from None
    found: list[Any] = texts.reshape(array.shape).tolist()
    return found


class SchemaRegistry:
    """The registry at `url`. MLCTL_SCHEMA_REGISTRY_AUTH may hold USER:PASSWORD for it."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        # The run itself tries again, and can be stopped meanwhile.
        settings: dict[str, object] = {"url": url, "timeout": _TIMEOUT_SECONDS, "max.retries": 0}
        if credentials := os.environ.get(AUTH_VARIABLE):
            settings["basic.auth.user.info"] = credentials
        self._clock = clock or SystemClock()
        try:
            self._client = SchemaRegistryClient(settings)
        except ValueError:
            # The library's message may contain the password.
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the schema registry's address or credentials are not valid",
                f"Write --option registry=http://HOST:8081 and {AUTH_VARIABLE}=USER:PASSWORD.",
            ) from None
        self._absent: dict[int, float] = {}

    def schema(self, number: int) -> Schema:
        """Return the schema `number`, from a cache; INVALID_INPUT if it does not exist."""
        if self._absent.get(number, 0.0) <= self._clock.monotonic():
            found = _request(lambda: self._client.get_schema(number))
            if found is not None:
                return found
            self._absent[number] = self._clock.monotonic() + _ABSENT_SECONDS
        raise invalid(f"the schema registry has no schema {number}")

    def referenced(self, schema: Schema, depth: int = 0) -> list[str]:
        """Return the texts of the schemas that `schema` refers to, after its own references."""
        if depth > _DEEPEST:
            raise invalid("schemas refer to each other in a cycle")
        texts: list[str] = []
        for reference in schema.references or ():
            subject, version = str(reference.subject), int(reference.version or 0)
            found = _request(lambda s=subject, v=version: self._client.get_version(s, v))  # type: ignore[misc]
            if found is None:
                raise invalid("a schema refers to one that the schema registry does not have")
            texts += [*self.referenced(found.schema, depth + 1), str(found.schema.schema_str)]
        return list(dict.fromkeys(texts))

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema under `subject`; return its number, the same each time."""
        found = _request(lambda: self._client.register_schema(subject, Schema(schema, "AVRO")))
        if found is None:
            raise _rejected(404)
        return found


def _request(send: Callable[[], _T]) -> _T | None:
    """Return the registry's answer; None for 404."""
    try:
        return send()
    except TransportError as error:
        raise _unavailable("did not answer") from error
    except SchemaRegistryError as error:
        status = error.http_status_code
        if status == 404:
            return None
        if status >= 500 or status in (408, 429):
            raise _unavailable(f"answered with HTTP {status}") from error
        raise _rejected(status) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unavailable("sent a reply that is not a schema") from error


def _unavailable(problem: str) -> MlctlError:
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"the schema registry {problem}")


def _rejected(status: int) -> MlctlError:
    """An error that no message can cause."""
    denied = status in (401, 403)
    return MlctlError(
        ErrorCode.UNAUTHENTICATED if denied else ErrorCode.REGISTRY_UNAVAILABLE,
        f"the schema registry rejected a request with HTTP {status}",
        f"Check --option registry and the credentials in {AUTH_VARIABLE}.",
    )
