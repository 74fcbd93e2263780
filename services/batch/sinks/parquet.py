"""Answers as a folder of Parquet files, partitioned by columns in the way of Hive if asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from services.batch.base import SinkRequest, UnitResult
from services.batch.folder import FolderSink
from services.batch.partitions import partitioned

if TYPE_CHECKING:
    import pyarrow as pa

# Of row groups that readers like; a part is one of them.
_ROWS = 100_000


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
        for folder, part in partitioned(table, by)
        if part.num_rows
    }


def _write(table: pa.Table, file: IO[bytes]) -> None:
    from pyarrow import parquet

    parquet.write_table(table, file, compression="zstd", row_group_size=2 * _ROWS)
