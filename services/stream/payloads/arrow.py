"""Arrow messages: each an IPC stream with a schema and any number of rows.

Columns feed inputs by the rules of `mlctl batch`, and answers have the columns that it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from bundle.errors import MlctlError
from bundle.tensors import Signature
from services.batch.answers import output_column
from services.protocol.wire import invalid
from services.runtime.tabular.input_columns import InputColumns, find_feeds, parse_map
from services.runtime.tabular.tensors import to_tensors
from services.stream.base import Decoded
from services.stream.payloads import KEEP_ALL, PayloadRequest
from services.stream.payloads.jsonrows import too_long
from services.stream.payloads.objects import MessageGroup, joined

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_SCHEMAS = 256
# Fields of Message and RecordBatch in Arrow's Message.fbs, as field numbers of their tables.
_HEADER, _COMPRESSION = 8, 10
# Messages of one schema: their indices, and their rows.
Group = tuple[list[int], list[Any]]


class ArrowPayload:
    """Decodes and encodes IPC streams for one signature."""

    name = "arrow"

    def __init__(self, request: PayloadRequest, signature: Signature) -> None:
        self._request = request
        self._signature = signature
        self._map = parse_map(request.map)
        self._feeds: dict[Any, tuple[InputColumns, ...] | str] = {}

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        rejected = too_long(values, self._request.max_bytes)
        groups: dict[Any, Group] = {}
        for index, value in enumerate(values):
            if index in rejected:
                continue
            try:
                table = _read(value, self._request)
            except MlctlError as error:
                rejected[index] = error.message
                continue
            indices, tables = groups.setdefault(table.schema, ([], []))
            indices.append(index)
            tables.append(table)
        pieces = [
            piece
            for schema, (indices, tables) in groups.items()
            for piece in self._pieces(schema, indices, tables, rejected)
        ]
        return joined(pieces, rejected)

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        import pyarrow as pa

        try:
            columns = {
                spec.name: output_column(spec, outputs[spec.name])
                for spec in self._signature.outputs
            }
        except UnicodeDecodeError:
            raise invalid("an answer is not UTF-8 text") from None
        whole = pa.table(columns)
        starts = [0, *accumulate(rows)]
        return [
            _written(whole.slice(start, count), carried[position] if carried else None)
            for position, (start, count) in enumerate(zip(starts, rows, strict=False))
        ]

    def _pieces(
        self, schema: pa.Schema, indices: list[int], tables: list[Any], rejected: dict[int, str]
    ) -> Iterator[MessageGroup]:
        import pyarrow as pa

        feeds = self._feeds_of(schema)
        if isinstance(feeds, str):
            rejected |= dict.fromkeys(indices, feeds)
            return
        groups, reasons = to_tensors(pa.concat_tables(tables), feeds)
        if len(groups) == 1 and not reasons:
            counts = [table.num_rows for table in tables]
            yield MessageGroup(indices, groups[0].arrays, counts, [self._kept(t) for t in tables])
            return
        for index, table in zip(indices, tables, strict=True):
            groups, reasons = to_tensors(table, feeds)
            if reasons:
                row, why = next(iter(reasons.items()))
                rejected[index] = f"row {row}: {why}"
            elif len(groups) != 1:
                rejected[index] = "the rows of a message must have one length"
            else:
                yield MessageGroup([index], groups[0].arrays, [table.num_rows], [self._kept(table)])

    def _feeds_of(self, schema: pa.Schema) -> tuple[InputColumns, ...] | str:
        """Return the input columns of a schema, or the reason why it has none."""
        feeds = self._feeds.get(schema)
        if feeds is None:
            if len(self._feeds) >= _KEPT_SCHEMAS:
                self._feeds.clear()
            try:
                feeds = find_feeds(schema, self._signature, self._map, self._request.missing)
            except MlctlError as error:
                feeds = error.message
            missing = [name for name in self._request.keep if name not in (KEEP_ALL, *schema.names)]
            clashes = [spec.name for spec in self._signature.outputs if spec.name in schema.names]
            if missing:
                feeds = f"column {missing[0]!r} is missing"
            elif clashes and KEEP_ALL in self._request.keep:
                feeds = f"column {clashes[0]!r} has the name of an output"
            self._feeds[schema] = feeds
        return feeds

    def _kept(self, table: pa.Table) -> pa.Table | None:
        if KEEP_ALL in self._request.keep:
            return table
        return table.select(self._request.keep) if self._request.keep else None


open_payload = ArrowPayload


def _read(value: bytes, request: PayloadRequest) -> pa.Table:
    """Return the validated rows of one message; INVALID_INPUT.

    Compressed buffers, dictionaries and lists of nulls are rejected before they are unpacked:
    they can be far larger in memory than in the message.
    """
    import pyarrow as pa

    try:
        content = pa.py_buffer(value)
        for part in pa.ipc.MessageReader.open_stream(content):
            if part.type == "dictionary" or (part.type == "record batch" and _is_compressed(part)):
                raise invalid("compressed Arrow messages and dictionaries are not supported")
        with pa.ipc.open_stream(content) as reader:
            if any(map(_is_list_of_nulls, reader.schema.types)):
                raise invalid("a column holds lists of nulls")
            batches, rows = [], 0
            for batch in reader:
                rows += batch.num_rows
                if rows > request.max_rows:
                    break
                batch.validate(full=True)
                batches.append(batch)
            schema = reader.schema.remove_metadata()
            names = set(schema.names)
    except (
        *(pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError),
        *(struct.error, IndexError),
    ) as error:
        raise invalid("the message is not a stream of Arrow's IPC format") from error
    if not 0 < rows <= request.max_rows:
        raise invalid(f"the message has {rows:,} rows or more (limit {request.max_rows:,})")
    if len(names) < len(schema):
        raise invalid("the message has a column twice")
    return pa.Table.from_batches(batches).replace_schema_metadata(None)


def _is_compressed(batch: Any) -> bool:
    """Return whether the metadata of a record batch has the field `compression` (Message.fbs)."""
    from flatbuffers import encode, packer, table

    content = batch.metadata.to_pybytes()
    message = table.Table(content, encode.Get(packer.uoffset, content, 0))
    header = table.Table(content, message.Indirect(message.Pos + message.Offset(_HEADER)))
    return bool(header.Offset(_COMPRESSION))


def _is_list_of_nulls(kind: Any) -> bool:
    from pyarrow import types

    inner = getattr(kind, "storage_type", kind)
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    return bool(types.is_null(inner)) and inner is not kind


def _written(answers: pa.Table, kept: pa.Table | None) -> bytes:
    import pyarrow as pa

    if kept is not None:
        columns = dict(zip(kept.schema.names, kept.columns, strict=True))
        answers = pa.table(columns | dict(zip(answers.schema.names, answers.columns, strict=True)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answers.schema) as writer:
        writer.write_table(answers)
    content: bytes = sink.getvalue().to_pybytes()
    return content
