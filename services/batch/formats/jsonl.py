"""JSON lines: one object per line, plain or compressed. The whole file is one unit."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import types

from bundle.errors import ErrorCode, MlctlError
from services.batch.formats.base import InputFormat, opened
from services.batch.locations import InputFile
from services.batch.pieces import typed_piece
from services.batch.units import Piece, UnreadableRow

# Lines from which columns and types are inferred.
_SAMPLE = 20_000
_SHOWN = 2_000


class JsonlFormat(InputFormat):
    """A line that is no object, or has a value of another type than its column, is a bad row."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    def schema(self, file: InputFile) -> pa.Schema:
        with opened(file) as stream:
            lines = [line for line in islice(stream, _SAMPLE) if line.strip()]
        found = _inferred(lines)
        if not found.names:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{file.name} has no JSON objects")
        return pa.schema(
            [(field.name, self.types.get(field.name) or _plain(field.type)) for field in found]
        )

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        start = 0
        with opened(file) as stream:
            while lines := list(islice(stream, piece_rows)):
                yield _load(lines, start, schema)
                start += len(lines)


def _load(lines: Sequence[bytes], start: int, schema: pa.Schema) -> Piece:
    with contextlib.suppress(pa.ArrowInvalid):
        table = _parsed(lines, schema)
        # An empty line makes no row: only the slow path keeps the numbers of the others.
        if table.num_rows == len(lines):
            return Piece(table, range(start, start + len(lines)))
    return _load_slowly(lines, start, schema)


def _parsed(lines: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    from pyarrow import json as arrow_json

    content = b"".join(lines)
    table = arrow_json.read_json(
        io.BytesIO(content),
        arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        arrow_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )
    return table if schema is None else table.select(schema.names)


def _load_slowly(lines: Sequence[bytes], start: int, schema: pa.Schema) -> Piece:
    """Parse line by line, so that only the lines at fault are bad."""
    rows: list[Mapping[str, Any]] = []
    numbers, rejected = list[int](), list[UnreadableRow]()
    for number, line in enumerate(lines, start):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"the line is not JSON: {error}"
        else:
            if isinstance(row, Mapping):
                rows.append(row)
                numbers.append(number)
                continue
            reason = "the line is not a JSON object"
        rejected.append(UnreadableRow(number, reason, _shown(line)))
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    return typed_piece(
        columns,
        schema,
        numbers,
        pa.array,
        lambda index: _shown(lines[numbers[index] - start]),
        tuple(rejected),
    )


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")[:_SHOWN]


def _inferred(lines: Sequence[bytes]) -> pa.Schema:
    """Return the schema of the lines; where they differ, of the most frequent ones."""
    try:
        return _parsed(lines, None).schema if lines else pa.schema([])
    except pa.ArrowInvalid:
        votes = Counter(filter(None, map(_schema_of, lines)))
    found = pa.schema([])
    for schema, _count in votes.most_common():
        with contextlib.suppress(pa.ArrowException):  # its rows become bad rows
            found = pa.unify_schemas([found, schema], promote_options="permissive")
    return found


def _schema_of(line: bytes) -> pa.Schema | None:
    try:
        return _parsed([line], None).schema
    except pa.ArrowException:
        return None


def _plain(kind: Any) -> Any:
    """Return text for times, which JSON does not have, and for columns that were always null."""
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if types.is_timestamp(kind) or types.is_null(kind) else kind
