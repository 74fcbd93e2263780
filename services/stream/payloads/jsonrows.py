"""JSON messages: an object with a field for each input, or a request of the V2 protocol.

They are read by the rules of the online path. An answer has a field for each
output and for each field of the message that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.json_body import parse_object
from mlctl.services.protocol.json_data import encode_data
from mlctl.services.protocol.wire import invalid
from mlctl.services.stream.base import Decoded
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.payloads.objects import Carried, ObjectReader

# Messages that are parsed together: their numbers fit into the processor's cache.
_BLOCK = 128
_COLON = ord(":")


class JsonPayload:
    """Decodes and encodes JSON for one signature."""

    name = "json"

    def __init__(self, request: PayloadRequest, signature: Signature) -> None:
        self._max_bytes = request.max_bytes
        self._inputs = {spec.name for spec in signature.inputs}
        self._codec = V2Codec("", "", signature)
        self._reader = ObjectReader(request, signature, self._read_v2)
        self._values: Sequence[bytes] = ()
        self._writer = JsonWriter(signature)

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        rejected = too_long(values, self._max_bytes)
        self._values = values
        starts = range(0, len(values), _BLOCK)
        blocks = (_parsed(values[start : start + _BLOCK], start, rejected) for start in starts)
        return self._reader.read(blocks, rejected)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        return self._writer.encode(outputs, rows, carried)

    def _read_v2(self, index: int, document: Any) -> Mapping[str, np.ndarray] | None:
        tensors = document.get("inputs") if isinstance(document, dict) else None
        if not isinstance(tensors, list) or not tensors or not isinstance(tensors[0], dict):
            return None
        return self._codec.decode(self._values[index], None).inputs


open_payload = JsonPayload


class JsonWriter:
    """Writes answers as JSON; MlctlError for one that JSON cannot represent."""

    def __init__(self, signature: Signature) -> None:
        self._specs = signature.outputs
        self._heads = [orjson.dumps(spec.name) + b":" for spec in self._specs]

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> list[bytes]:
        """Return a value for each message; `carried` are `Carried` or None."""
        columns = [_row_texts(spec, outputs[spec.name]) for spec in self._specs]
        if not any(carried) and sum(rows) == len(rows):
            return self._plain(columns)
        start, found = 0, []
        for index, count in enumerate(rows):
            about: Carried | None = carried[index] if carried else None
            many = count != 1 if about is None else about.many
            parts = [column[start : start + count] for column in columns]
            texts = [b"[" + b",".join(part) + b"]" if many else part[0] for part in parts]
            fields = [head + text for head, text in zip(self._heads, texts, strict=True)]
            if about is not None and about.kept:
                fields.insert(0, _kept_text(about.kept))
            found.append(b"{" + b",".join(fields) + b"}")
            start += count
        return found

    def _plain(self, columns: Sequence[Sequence[bytes]]) -> list[bytes]:
        first = b"{" + self._heads[0]
        if len(columns) == 1:
            return [first + text + b"}" for text in columns[0]]
        form = b"{" + b",".join(head.replace(b"%", b"%%") + b"%b" for head in self._heads) + b"}"
        return [form % texts for texts in zip(*columns, strict=True)]


def _kept_text(kept: Mapping[str, Any]) -> bytes:
    """Return fields as JSON; a field may be nested deeper than can be written."""
    try:
        return orjson.dumps(kept)[1:-1]
    except orjson.JSONEncodeError:
        raise invalid("a kept field is nested too deeply") from None


def too_long(values: Sequence[bytes], max_bytes: int) -> dict[int, str]:
    """Return the reasons of messages over `max_bytes` by index; they are not parsed."""
    if not values or max(map(len, values)) <= max_bytes:
        return {}
    return {
        index: f"the message has {len(value):,} bytes (limit {max_bytes:,})"
        for index, value in enumerate(values)
        if len(value) > max_bytes
    }


def _parsed(values: Sequence[bytes], first: int, rejected: dict[int, str]) -> list[Any]:
    """Return the documents, None for rejected ones; add invalid ones to `rejected`.

    `first` is the index of the first of `values`.
    """
    documents: list[Any] = []
    if rejected.keys().isdisjoint(range(first, first + len(values))):
        try:
            documents = list(map(orjson.loads, values))
        except orjson.JSONDecodeError:
            documents = []
    if not documents:
        documents = [_loaded(i, value, rejected) for i, value in enumerate(values, first)]
    for index in _maybe_duplicate_keys(values, documents):
        try:
            if first + index not in rejected:
                parse_object(values[index])
        except MlctlError as error:
            rejected[first + index] = error.message.replace("the body", "the message")
    return documents


def _loaded(index: int, value: bytes, rejected: dict[int, str]) -> Any:
    if index in rejected:
        return None
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        rejected[index] = f"the message is not valid JSON (at character {error.pos})"
        return None


def _maybe_duplicate_keys(values: Sequence[bytes], documents: Sequence[Any]) -> list[int]:
    """Return the messages that may have a key twice, of which the parser drops one.

    Every key has a colon: as many colons as keys means that none was dropped.
    """
    if set(map(type, documents)) == {dict}:
        content = np.frombuffer(b"".join(values), np.uint8)
        if np.count_nonzero(content == _COLON) == sum(map(len, documents)):
            return []
    return [
        index
        for index, (value, document) in enumerate(zip(values, documents, strict=True))
        if not _plain_keys(value, document)
    ]


def _plain_keys(value: bytes, document: Any) -> bool:
    """Return whether all colons but those of the outer keys are inside strings."""
    if type(document) is not dict or b"\\" in value:
        return False
    found = len(document)
    for key, each in document.items():
        found += key.count(":") + (each.count(":") if type(each) is str else 0)
    return value.count(b":") == found


def _row_texts(spec: TensorSpec, array: np.ndarray) -> list[bytes]:
    """Return the JSON of each row: all rows are written at once and split."""
    flat = encode_data(spec, array)
    if spec.dtype is Datatype.BYTES:
        rows = np.array(flat, object).reshape(array.shape).tolist()
        return [orjson.dumps(row) for row in rows]
    assert isinstance(flat, np.ndarray)
    if not len(array):
        return []
    shaped = np.ascontiguousarray(flat).reshape(array.shape)
    depth = shaped.ndim - 1
    text = orjson.dumps(shaped, option=orjson.OPT_SERIALIZE_NUMPY)
    if not depth:
        return text[1:-1].split(b",")
    inner, opening, closing = text[1 + depth : -1 - depth], b"[" * depth, b"]" * depth
    return [opening + row + closing for row in inner.split(closing + b"," + opening)]
