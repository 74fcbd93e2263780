"""Arrow IPC files (also called Feather) and streams. The whole file is one unit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from services.batch.formats.base import InputFormat, opened
from services.batch.locations import InputFile
from services.batch.pieces import arrow_pieces
from services.batch.units import Piece

_MAGIC = b"ARROW1"


class IpcFormat(InputFormat):
    """Columns must have the same types in every file."""

    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".arrows", ".feather", ".ipc")

    def schema(self, file: InputFile) -> pa.Schema:
        with _reader(file) as (schema, _batches):
            return schema

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        with _reader(file) as (found, batches):
            for field in schema:
                if field.name not in found.names or found.field(field.name).type != field.type:
                    raise pa.ArrowInvalid(
                        f"column {field.name!r} is not {field.type} as in the first file"
                    )
            yield from arrow_pieces((each.select(schema.names) for each in batches), piece_rows)


@contextlib.contextmanager
def _reader(file: InputFile) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
    """Return the schema and the batches."""
    with opened(file) as stream:
        if stream.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
            with pa.ipc.open_stream(stream) as reader:
                yield reader.schema, iter(reader)
        elif file.compression is None:
            with pa.ipc.open_file(stream) as reader:
                yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            raise pa.ArrowInvalid("an Arrow file cannot be compressed as a whole; use a stream")
