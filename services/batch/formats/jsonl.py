"""JSON lines: one object per line, plain or compressed. The whole file is one unit."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import NoneType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import types

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.formats.base import InputFormat, opened_text
from mlctl.services.batch.locations import InputFile
from mlctl.services.batch.pieces import typed_piece
from mlctl.services.batch.units import Piece, UnreadableRow, with_types
from mlctl.services.tables.casts import Misfits, from_values, memory
from mlctl.services.tables.input_columns import is_list

# Lines from which columns and types are inferred.
_SAMPLE = 20_000
_SHOWN = 2_000
# Parquet's readers reject deeper columns.
_DEEPEST = 32
# Floats represent all whole numbers below; larger ones than int64 are decimals.
_EXACT = float(1 << 53)
_LARGE_WHOLE = pa.decimal128(38, 0)


class JsonlFormat(InputFormat):
    """A line that is no object, or has a value of another type than its column, is a bad row."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    typed = False
    open_columns = True

    def schema(self, file: InputFile) -> pa.Schema:
        with opened_text(file) as stream:
            lines = [line for line in islice(stream, _SAMPLE) if line.strip()]
        found = _inferred(lines)
        if not found.names:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{file.name} has no JSON objects")
        if deep := next((field.name for field in found if _is_deep(field.type)), None):
            raise pa.ArrowInvalid(f"column {deep!r} is nested more than {_DEEPEST} levels deep")
        schema = pa.schema([(field.name, _plain(field.type)) for field in found])
        return with_types(schema, self.types)

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        start = 0
        with opened_text(file) as stream:
            while lines := list(islice(stream, piece_rows)):
                yield self._load(lines, start, schema)
                start += len(lines)

    def _load(self, lines: Sequence[bytes], start: int, schema: pa.Schema) -> Piece:
        # Fields that are not in a type are left out without an error only where that loses nothing.
        unexpected = "error" if self.reading.every else "ignore"
        if unexpected == "ignore" and any(map(_has_fields, schema.types)):
            unexpected = "infer"
        with contextlib.suppress(pa.ArrowException, UnicodeDecodeError):
            table = _parsed(lines, schema, unexpected)
            # An empty line makes no row: only the slow path keeps the numbers of the others.
            whole = table.num_rows == len(lines) and table.schema.types == schema.types
            if whole and not any(map(_may_be_rounded, self._lossless(table))):
                return Piece(table, range(start, start + len(lines)))
        return self._load_slowly(lines, start, schema)

    def _lossless(self, table: pa.Table) -> Iterator[Any]:
        """Yield the columns that must not lose digits."""
        for name in table.column_names:
            if name not in self.reading.types:
                yield table.column(name)

    def _load_slowly(self, lines: Sequence[bytes], start: int, schema: pa.Schema) -> Piece:
        """Parse line by line, so that only the lines at fault are bad."""
        rows: list[Mapping[str, Any]] = []
        numbers, rejected = list[int](), list[UnreadableRow]()
        for number, line in enumerate(lines, start):
            if not line.strip():
                continue
            try:
                row = self._row(line, schema)
            except _BadLineError as error:
                rejected.append(UnreadableRow(number, str(error), _shown(line)))
            except (ValueError, RecursionError) as error:
                reason = f"the line is not JSON: {error}"
                rejected.append(UnreadableRow(number, reason, _shown(line)))
            else:
                rows.append(row)
                numbers.append(number)
        columns = {name: [row.get(name) for row in rows] for name in schema.names}
        return typed_piece(
            columns,
            schema,
            numbers,
            self._converted,
            lambda index: _shown(lines[numbers[index] - start]),
            tuple(rejected),
        )

    def _row(self, line: bytes, schema: pa.Schema) -> Mapping[str, Any]:
        row = json.loads(line, object_pairs_hook=_object, parse_float=_finite)
        if not isinstance(row, dict):
            raise _BadLineError("the line is not a JSON object")
        for key in row if self.reading.every else ():
            if key not in schema.names and key not in self.folder_keys:
                raise _BadLineError(
                    f"the key {key!r} is in none of the first {_SAMPLE:,} lines: name it in "
                    "--option types=KEY:TYPE"
                )
        return row

    def _converted(self, field: pa.Field, values: Sequence[Any]) -> tuple[Any, Misfits]:
        return from_values(values, field.type, exact=field.name not in self.reading.types)


class _BadLineError(Exception):
    """Why a line of JSON is no row."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _BadLineError(f"the line has the key {twice!r} twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _BadLineError(f"the number {text[:40]} is too large")
    return number


def _parsed(
    lines: Sequence[bytes], schema: pa.Schema | None, unexpected: str = "infer"
) -> pa.Table:
    from pyarrow import json as arrow_json

    content = b"".join(lines)
    if not content.isascii():
        content.decode()  # Arrow takes any bytes for text
    table = arrow_json.read_json(
        io.BytesIO(content),
        arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    return table if schema is None else table.select(schema.names)


def _is_deep(kind: Any, left: int = _DEEPEST) -> bool:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return bool(inner) and (left == 0 or any(_is_deep(each, left - 1) for each in inner))


def _has_fields(kind: Any) -> bool:
    if types.is_struct(kind):
        return True
    return is_list(kind) and _has_fields(kind.value_type)


def _may_be_rounded(column: Any) -> bool:
    """Return whether a column of floats may have lost digits of whole numbers."""
    if not types.is_floating(column.type):
        return False
    values = np.concatenate([memory(chunk) for chunk in column.chunks] or [np.zeros(0)])
    return bool((np.abs(values) >= _EXACT).any())


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")[:_SHOWN]


def _inferred(lines: Sequence[bytes]) -> pa.Schema:
    """Return the schema of the lines; where they differ, of the most frequent ones."""
    try:
        return _without_rounding(_parsed(lines, None), lines) if lines else pa.schema([])
    except (pa.ArrowException, UnicodeDecodeError):
        votes = Counter(filter(None, map(_schema_of, lines)))
    found = pa.schema([])
    for schema, _count in votes.most_common():
        with contextlib.suppress(pa.ArrowException):  # its rows become bad rows
            found = pa.unify_schemas([found, schema], promote_options="permissive")
    return found


def _without_rounding(table: pa.Table, lines: Sequence[bytes]) -> pa.Schema:
    """Return the schema of the lines, with decimals for whole numbers that are too large."""
    schema: pa.Schema = table.schema
    large = [name for name in schema.names if _may_be_rounded(table.column(name))]
    if large:
        rows = [json.loads(line) for line in lines]
        whole = [name for name in large if {type(row.get(name)) for row in rows} <= {int, NoneType}]
        schema = with_types(schema, dict.fromkeys(whole, _LARGE_WHOLE))
    return schema


def _schema_of(line: bytes) -> pa.Schema | None:
    try:
        return _parsed([line], None).schema
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _plain(kind: Any) -> Any:
    """Return text for times, which JSON does not have, and for columns that were always null."""
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if types.is_timestamp(kind) or types.is_null(kind) else kind
