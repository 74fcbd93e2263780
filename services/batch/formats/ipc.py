"""Arrow IPC files (also called Feather) and streams. The whole file is one unit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from mlctl.services.batch.filters import Filter
from mlctl.services.batch.formats.base import FilePlan, InputFormat, opened
from mlctl.services.batch.locations import InputFile
from mlctl.services.batch.pieces import arrow_pieces
from mlctl.services.batch.units import Piece
from mlctl.services.tables.casts import plain_type

_MAGIC = b"ARROW1"


class IpcFormat(InputFormat):
    """The head of a file states its columns."""

    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".arrows", ".feather", ".ipc")

    def schema(self, file: InputFile) -> pa.Schema:
        with _reader(file) as (schema, _batches):
            return pa.schema([field.with_type(_writable(field.type)) for field in schema])

    def plan(self, file: InputFile, condition: Filter | None, keys: Any) -> FilePlan:  # noqa: ARG002
        return FilePlan([(None, None)], schema=self.schema(file))

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        with _reader(file) as (_schema, batches):
            chosen = (each.select(schema.names) for each in batches)
            yield from arrow_pieces(chosen, piece_rows, schema, self.reading.types)


def _writable(kind: Any) -> Any:
    """Return a type that all formats of answers can store, for views and run-end encoding."""
    is_kept = isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind)
    return kind if is_kept else plain_type(kind)


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
