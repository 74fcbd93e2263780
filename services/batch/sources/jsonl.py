"""Rows of JSON lines: one object a line, plain or compressed. Empty lines are left out."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow
from services.batch.locations import InputFile
from services.batch.sources.files import FilesSource, LoadedPiece, Piece, opened
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

# Lines that tell the columns and their types.
_SAMPLE = 20_000
_SHOWN = 2_000


class JsonlSource(FilesSource):
    """A value that is not of its column's type, and a line that is no object, is a bad row."""

    endings = (".jsonl", ".ndjson")

    def first_schema(self, file: InputFile) -> pa.Schema:
        import pyarrow as pa

        with opened(file) as stream:
            lines = [line for line in islice(stream, _SAMPLE) if line.strip()]
        found = _inferred(lines)
        if not found.names:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{file.name} has no objects of JSON")
        return pa.schema(
            [(field.name, self.types.get(field.name) or _plain(field.type)) for field in found]
        )

    def pieces(self, file: InputFile, columns: Sequence[str]) -> Iterator[Piece]:
        import pyarrow as pa

        schema = pa.schema([self.schema.field(name) for name in columns])
        start = 0
        with opened(file) as stream:
            while lines := list(islice(stream, self.unit_rows)):
                yield Piece(start, len(lines), partial(_load, lines, start, schema))
                start += len(lines)


open_source = JsonlSource


def _load(lines: Sequence[bytes], start: int, schema: pa.Schema) -> LoadedPiece:
    import pyarrow as pa

    try:
        table = _parsed(lines, schema)
    except pa.ArrowInvalid:
        return _load_slowly(lines, start, schema)
    # An empty line makes no row: only one by one they keep their numbers.
    if table.num_rows != len(lines):
        return _load_slowly(lines, start, schema)
    return LoadedPiece(table)


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


def _load_slowly(lines: Sequence[bytes], start: int, schema: pa.Schema) -> LoadedPiece:
    """Line by line, so that only those at fault are bad."""
    import pyarrow as pa

    good, numbers, rejected = [], [], []
    for number, line in enumerate(lines, start):
        if not line.strip():
            continue
        row: Any = None
        try:
            row = json.loads(line)
            good.append(_row(row, schema))
        except (ValueError, TypeError, RecursionError) as error:
            rejected.append(BadRow(number, _reason(row, error), _held(row, line)))
        else:
            numbers.append(number)
    table = pa.Table.from_pylist(good, schema=schema)
    return LoadedPiece(table, tuple(rejected), numbers)


def _row(row: object, schema: pa.Schema) -> dict[str, object]:
    """The columns' values; ValueError or TypeError names the one that does not fit."""
    import pyarrow as pa

    if not isinstance(row, Mapping):
        raise TypeError("the line is no object of JSON")
    for field in schema:
        try:
            pa.scalar(row.get(field.name), field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"column {field.name!r} is not {field.type}") from error
    return {name: row.get(name) for name in schema.names}


def _reason(row: object, error: Exception) -> str:
    return f"the line is not JSON: {error}" if row is None else str(error)


def _held(row: object, line: bytes) -> Mapping[str, object]:
    """The line's values, or itself where they cannot be written down."""
    try:
        held = as_json(row)
        json.dumps(held, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        held = None
    if isinstance(held, dict):
        return held
    return {"line": line.decode(errors="replace").rstrip("\n")[:_SHOWN]}


def _inferred(lines: Sequence[bytes]) -> pa.Schema:
    """What Arrow makes of the lines; where they differ, of those that most agree with."""
    import pyarrow as pa

    try:
        return _parsed(lines, None).schema if lines else pa.schema([])
    except pa.ArrowInvalid:
        votes = Counter(filter(None, map(_schema_of, lines)))
    found = pa.schema([])
    for schema, _count in votes.most_common():
        with contextlib.suppress(pa.ArrowException):  # its rows will be bad ones
            found = pa.unify_schemas([found, schema], promote_options="permissive")
    return found


def _schema_of(line: bytes) -> pa.Schema | None:
    import pyarrow as pa

    try:
        return _parsed([line], None).schema
    except pa.ArrowException:
        return None


def _plain(kind: Any) -> Any:
    """JSON has no times, and a column that was always null so far may be anything."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if types.is_timestamp(kind) or types.is_null(kind) else kind
