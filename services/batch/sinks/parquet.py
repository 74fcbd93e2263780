"""Answers as a folder of Parquet files, partitioned by columns in the way of Hive if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import SinkRequest, UnitResult
from services.batch.folder import FolderSink

if TYPE_CHECKING:
    import pyarrow as pa

# Of row groups that readers like; a part is one of them.
_ROWS = 100_000
_NULL = "__HIVE_DEFAULT_PARTITION__"


def open_sink(request: SinkRequest) -> FolderSink:
    """The folder at `request.location`."""
    root = Path(request.location.removeprefix("file://"))
    return FolderSink(root, _parts, _ROWS)


def _parts(
    results: Sequence[UnitResult], stem: str, by: tuple[str, ...]
) -> Mapping[str, Callable[[IO[bytes]], None]]:
    import pyarrow as pa

    table = pa.concat_tables([result.table for result in results])
    return {
        f"{folder}{stem}.parquet": partial(_write, part)
        for folder, part in _partitions(table, by)
        if part.num_rows
    }


def _write(table: pa.Table, file: IO[bytes]) -> None:
    from pyarrow import parquet

    parquet.write_table(table, file, compression="zstd", row_group_size=2 * _ROWS)


def _partitions(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Each folder, with "/" at its end, and the rows that belong there."""
    import pyarrow as pa
    from pyarrow import compute

    if not by:
        yield "", table
        return
    if missing := [name for name in by if name not in table.schema.names]:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--partition-by {missing[0]}: the answers have no such column",
            "Keep it: add it to --keep.",
        )
    number = "mlctl_row"
    keys = table.select(by).append_column(number, pa.array(range(table.num_rows)))
    groups = keys.group_by(list(by), use_threads=False).aggregate([(number, "list")])
    rest = table.drop_columns(list(by))
    for group in groups.to_pylist():
        folders = (f"{quote(name, safe='')}={_folder_value(group[name])}/" for name in by)
        yield (
            "".join(folders),
            rest.take(compute.cast(pa.array(group[f"{number}_list"]), pa.int64())),
        )


def _folder_value(value: object) -> str:
    return _NULL if value is None else quote(str(value), safe=" ")
