"""Rows of Arrow's own format: files, also those called Feather, and streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from services.batch.locations import InputFile
from services.batch.sources.files import FilesSource, LoadedPiece, Piece, opened

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"


class IpcSource(FilesSource):
    """A unit is consecutive rows of one file, whatever its record batches."""

    endings = (".arrow", ".arrows", ".feather", ".ipc")

    def first_schema(self, file: InputFile) -> pa.Schema:
        with _reader(file) as (schema, _batches):
            return schema

    def pieces(self, file: InputFile, columns: Sequence[str]) -> Iterator[Piece]:
        import pyarrow as pa

        wanted = pa.schema([self.schema.field(name) for name in columns])
        with _reader(file) as (schema, batches):
            missing = [f for f in wanted if f.name not in schema.names]
            other = [f for f in wanted if f not in missing and schema.field(f.name).type != f.type]
            for each in (*missing, *other):
                raise pa.ArrowInvalid(f"column {each.name!r} is not {each.type}, as in the first")
            start = 0
            for table in regrouped(batches, wanted, self.unit_rows):
                yield Piece(start, table.num_rows, partial(LoadedPiece, table))
                start += table.num_rows


open_source = IpcSource


def regrouped(batches: Iterator[Any], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """The columns of `schema` in tables of `rows` rows; the last one may be smaller."""
    import pyarrow as pa

    held, count = [], 0
    for batch in batches:
        held.append(batch.select(schema.names))
        count += batch.num_rows
        while count >= rows:
            table = pa.Table.from_batches(held)
            yield table.slice(0, rows)
            held = table.slice(rows).to_batches()
            count -= rows
    if count:
        yield pa.Table.from_batches(held)


@contextlib.contextmanager
def _reader(file: InputFile) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
    """The schema and the batches."""
    import pyarrow as pa

    with opened(file) as stream:
        # Packed files and streams can only be read forwards.
        plain = not file.path.endswith((".gz", ".zst"))
        if stream.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
            with pa.ipc.open_stream(stream) as reader:
                yield reader.schema, iter(reader)
        elif plain:
            with pa.ipc.open_file(stream) as reader:
                yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            raise pa.ArrowInvalid("Arrow's format for files cannot be packed; use its stream")
