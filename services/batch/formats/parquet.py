"""Parquet: units are row groups, and row groups that cannot match the filter are never read."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import pyarrow as pa

from mlctl.services.batch.filters import Filter
from mlctl.services.batch.formats.base import FilePlan, InputFormat
from mlctl.services.batch.locations import InputFile
from mlctl.services.batch.pieces import arrow_pieces
from mlctl.services.batch.units import Piece

# Read at once: of all columns together, and of each column at least.
_READ_BYTES = 16 << 20
_COLUMN_BYTES = 1 << 16


class ParquetFormat(InputFormat):
    """A unit is consecutive row groups of one file with at least `unit_rows` rows in all."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    def schema(self, file: InputFile) -> pa.Schema:
        with _opened(file, []) as opened:
            found: pa.Schema = opened.schema_arrow
            return found

    def plan(self, file: InputFile, condition: Filter | None, keys: Any) -> FilePlan:
        with _opened(file, []) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        matching = list(range(len(counts)))
        if condition is not None:
            matching = _matching_groups(file, condition, keys, schema)
        units, group, kept = [], list[int](), set(matching)
        for index, rows in enumerate(counts):
            if index in kept and rows:
                group.append(index)
            full = sum(counts[each] for each in group) >= self.unit_rows
            if group and (full or index == len(counts) - 1):
                units.append((sum(counts[each] for each in group), tuple(group)))
                group = []
        pruned = sum(counts) - sum(rows for rows, _groups in units)
        return FilePlan(units, pruned, schema)

    def pieces(
        self, file: InputFile, part: Any, schema: pa.Schema, piece_rows: int
    ) -> Iterator[Piece]:
        with _opened(file, schema.names) as opened:
            metadata = opened.metadata
            groups = [metadata.row_group(index).num_rows for index in range(max(part) + 1)]
            starts = [0, *accumulate(groups)]
            for group in part:
                start = starts[group]
                # One thread, because the other cores have units of their own: threads for the
                # columns of one row group cost 5 % of a job's CPU, and shorten none.
                batches = opened.iter_batches(piece_rows, [group], schema.names, use_threads=False)
                chosen = (batch.select(schema.names) for batch in batches)
                yield from arrow_pieces(chosen, piece_rows, schema, self.reading.types, start)


def _matching_groups(file: InputFile, condition: Filter, keys: Any, schema: pa.Schema) -> list[int]:
    """Return the row groups that may have matching rows, by their statistics and the partition."""
    from pyarrow import dataset, fs

    system = (
        fs.LocalFileSystem()
        if file.system is None
        else fs.PyFileSystem(fs.FSSpecHandler(file.system))
    )
    fragment = dataset.ParquetFileFormat().make_fragment(file.path, system, keys)
    try:
        return [group.id for group in fragment.subset(condition.expression(), schema).row_groups]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        # Names a column of the folders, or compares types that statistics do not have.
        return [group.id for group in fragment.row_groups]


@contextlib.contextmanager
def _opened(file: InputFile, columns: list[str]) -> Iterator[Any]:
    """Open `file` to read `columns`.

    A list of fixed size that is null is read as a plain list: pyarrow 25 cannot read it otherwise.
    """
    from pyarrow import parquet

    size = max(_COLUMN_BYTES, min(1 << 20, _READ_BYTES // max(1, len(columns))))
    with contextlib.ExitStack() as stack:
        source: Any = file.path if file.system is None else stack.enter_context(file.open())
        # Reading ahead on a local disk would hold the whole file; in a bucket it saves round trips.
        ahead = file.system is not None
        read = partial(parquet.ParquetFile, source, buffer_size=size, pre_buffer=ahead)
        found = stack.enter_context(read())
        if any(_may_have_null_lists(found, name) for name in columns):
            found = stack.enter_context(read(metadata=_without_arrow_types(found.metadata)))
        yield found


def _may_have_null_lists(file: Any, name: str) -> bool:
    if not _has_fixed_lists(file.schema_arrow.field(name).type):
        return False
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    statistics = (c.statistics for c in chunks if c.path_in_schema.startswith(f"{name}."))
    return any(each is None or not each.has_null_count or each.null_count for each in statistics)


def _has_fixed_lists(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_fixed_size_list(kind) or any(map(_has_fixed_lists, inner))


def _without_arrow_types(metadata: Any) -> Any:
    """Rename the footer's entry with Arrow's types, so that columns have Parquet's own types."""
    from pyarrow import parquet

    footer = io.BytesIO()
    metadata.write_metadata_file(footer)
    renamed = footer.getvalue().replace(b"ARROW:schema", b"arrow:schema")
    return parquet.read_metadata(io.BytesIO(renamed))
