"""Rows of Parquet: a file, a folder, a glob, a Hive-partitioned dataset, a URL."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import threading
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Chunk, SourceRequest, Unit
from services.batch.locations import InputFile
from services.batch.sources.files import Listed, told

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".pq")
# Read at once: of all columns together, and of each at least.
_READ_BYTES = 16 << 20
_COLUMN_BYTES = 1 << 16
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class _Planned:
    """A file, and the rows of each of its row groups."""

    file: InputFile
    schema: pa.Schema
    row_groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.row_groups)


class ParquetSource:
    """The files of `request`. A unit is consecutive rows of one file, across row groups."""

    def __init__(self, request: SourceRequest) -> None:
        self.name = request.location
        self._unit_rows = request.unit_rows
        self._listed = Listed(request.location, ENDINGS)
        self._files = self._listed.files
        if not self._files:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{self.name} has no Parquet files")
        self._keys = _partition_keys(self._files)
        self._local = threading.local()

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the first file and of the folders' names."""
        import pyarrow as pa

        schema = _plan(self._files[0]).schema
        for name, numbers in self._keys.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.int64() if numbers else pa.string()))
        return schema

    def identity(self) -> Mapping[str, str]:
        listed = "\n".join(f"{f.name}\t{f.size}\t{f.version}" for f in self._files)
        return {
            "files": str(len(self._files)),
            "bytes": str(sum(file.size for file in self._files)),
            "versions": hashlib.sha256(listed.encode()).hexdigest()[:16],
        }

    def total_rows(self) -> int | None:
        return sum(planned.rows for planned in self._plans)

    def units(self) -> Iterator[Unit]:
        index = 0
        for planned in self._plans:
            for start in range(0, planned.rows, self._unit_rows):
                rows = min(self._unit_rows, planned.rows - start)
                yield Unit(f"{index:08}", planned.file.name, start, rows)
                index += 1

    def scan(self, columns: Sequence[str], done: Container[str]) -> Iterator[Chunk]:
        self._listed.check_again()
        self.check(columns)
        try:
            for unit in self.units():
                if unit.id not in done:
                    yield self.read(unit, columns)
        finally:
            self._close()

    def read(self, unit: Unit, columns: Sequence[str]) -> Chunk:
        """Return the rows of `unit`; continues where this thread's last unit ended if it can."""
        cursor: _Cursor | None = getattr(self._local, "cursor", None)
        if cursor is None or not cursor.serves(unit, columns):
            self._close()
            cursor = _Cursor(self._by_name[unit.origin], tuple(columns), self._unit_rows)
            self._local.cursor = cursor
        table = cursor.take(unit.start, unit.rows)
        return Chunk(unit, self._with_keys(table, unit.origin, columns))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle everything but the open file."""
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def _close(self) -> None:
        """Close this thread's open file."""
        cursor: _Cursor | None = getattr(self._local, "cursor", None)
        if cursor is not None:
            cursor.close()
            self._local.cursor = None

    @cached_property
    def _plans(self) -> list[_Planned]:
        return [_plan(file) for file in self._files]

    @cached_property
    def _by_name(self) -> dict[str, _Planned]:
        return {planned.file.name: planned for planned in self._plans}

    def check(self, columns: Sequence[str]) -> None:
        """Raise INVALID_INPUT unless each file has the columns with the same types."""
        for planned in self._plans:
            for name in columns:
                wanted = self.schema.field(name).type
                index = planned.schema.get_field_index(name)
                if index < 0 and name in self._keys:
                    continue
                has = planned.schema.field(index).type if index >= 0 else None
                if has != wanted:
                    told = "has no such column" if has is None else f"has {has}"
                    raise MlctlError(
                        ErrorCode.INVALID_INPUT,
                        f"column {name!r} is {wanted} in {self._files[0].name}, "
                        f"but {planned.file.name} {told}",
                    )

    def _with_keys(self, table: pa.Table, origin: str, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        values = dict(_keys_of(origin))
        for name in columns:
            if name not in table.schema.names:
                kind = self.schema.field(name).type
                text = values.get(name)
                value = pa.scalar(None if text == _NULL else text, pa.string()).cast(kind)
                table = table.append_column(name, pa.repeat(value, table.num_rows))
        return table.select(list(columns))


open_source = ParquetSource


class _Cursor:
    """A position in an open file, which moves forward row by row."""

    def __init__(self, planned: _Planned, columns: tuple[str, ...], batch_rows: int) -> None:
        self._planned = planned
        self._columns = columns
        self._names = [name for name in columns if name in planned.schema.names]
        self._batch_rows = batch_rows
        self._stack = contextlib.ExitStack()
        self._position = -1
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None

    def serves(self, unit: Unit, columns: Sequence[str]) -> bool:
        return self._planned.file.name == unit.origin and self._columns == tuple(columns)

    def close(self) -> None:
        self._stack.close()

    def take(self, start: int, rows: int) -> pa.Table:
        """Return rows `start` to `start + rows`; INVALID_INPUT if the file changed."""
        with told(self._planned.file):
            if self._position != start:
                self._seek(start)
            return self._next(rows)

    def _seek(self, start: int) -> None:
        """Open the file at the row group that has row `start`, and skip to that row."""
        self._stack.close()
        file = self._stack.enter_context(_opened(self._planned.file, self._names))
        ends = list(accumulate(self._planned.row_groups))
        first = bisect_right(ends, start)
        before = ends[first - 1] if first else 0
        groups = list(range(first, len(ends)))
        self._batches = file.iter_batches(self._batch_rows, groups, self._names or [])
        self._position, self._rest = before, None
        if start > before:
            self._next(start - before)

    def _next(self, rows: int) -> pa.Table:
        import pyarrow as pa

        self._position += rows
        if not self._names:  # only columns of the folders' names
            return pa.table({"": pa.nulls(rows)})
        parts, missing = [], rows
        while missing:
            batch = self._rest if self._rest is not None else next(self._batches)
            parts.append(batch.slice(0, missing))
            self._rest = batch.slice(missing) if batch.num_rows > missing else None
            missing -= parts[-1].num_rows
        table = pa.Table.from_batches(parts)
        schema = pa.schema(map(self._planned.schema.field, table.column_names))
        return table if table.schema.types == schema.types else table.cast(schema)


@contextlib.contextmanager
def _opened(file: InputFile, columns: Sequence[str] = ()) -> Iterator[Any]:
    """Open `file` to read `columns`; lists of a fixed size come as plain lists if some are null."""
    from pyarrow import parquet

    size = max(_COLUMN_BYTES, min(1 << 20, _READ_BYTES // max(1, len(columns))))
    with contextlib.ExitStack() as stack:
        place = file.path if file.system is None else stack.enter_context(file.open())
        # Not buffered ahead: memory would follow the size of the file.
        read = partial(parquet.ParquetFile, place, buffer_size=size, pre_buffer=False)
        found = stack.enter_context(read())
        if any(_has_null_lists(found, name) for name in columns):
            found = stack.enter_context(read(metadata=_without_arrow_types(found.metadata)))
        yield found


def _has_null_lists(file: Any, name: str) -> bool:
    """Return whether a column may have null lists of a fixed size, which pyarrow 25 cannot read."""
    if not _has_fixed_lists(file.schema_arrow.field(name).type):
        return False
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    statistics = (c.statistics for c in chunks if c.path_in_schema.startswith(f"{name}."))
    return any(each is None or not each.has_null_count or each.null_count for each in statistics)


def _has_fixed_lists(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_fixed_size_list(kind) or any(map(_has_fixed_lists, inner))


def _without_arrow_types(metadata: Any) -> Any:
    """Rename the footer's entry with Arrow's types, so that columns are read as Parquet's own."""
    from pyarrow import parquet

    footer = io.BytesIO()
    metadata.write_metadata_file(footer)
    renamed = footer.getvalue().replace(b"ARROW:schema", b"arrow:schema")
    return parquet.read_metadata(io.BytesIO(renamed))


def _plan(file: InputFile) -> _Planned:
    with told(file), _opened(file) as opened:
        metadata = opened.metadata
        groups = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        return _Planned(file, opened.schema_arrow, tuple(groups))


def _keys_of(name: str) -> Iterator[tuple[str, str]]:
    for part in name.split("/")[:-1]:
        key, separator, value = part.partition("=")
        if separator and key:
            yield unquote(key), unquote(value)


def _partition_keys(files: Sequence[InputFile]) -> dict[str, bool]:
    """Return the columns of the folders' names, and whether each has whole numbers only."""
    found: dict[str, bool] = {}
    for file in files:
        for key, value in _keys_of(file.name):
            number = value == _NULL or _WHOLE.fullmatch(value) is not None
            found[key] = found.get(key, True) and number
    return found
