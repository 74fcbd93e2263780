"""Answers as a folder of Parquet files, partitioned by columns in the way of Hive on request."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from services.batch.base import SinkRequest
from services.batch.folder import COMMIT_ROWS, FolderSink

if TYPE_CHECKING:
    import pyarrow as pa


def open_sink(request: SinkRequest) -> FolderSink:
    """The folder at `request.location`."""
    return FolderSink(request.location, ".parquet", _write)


def _write(table: pa.Table, file: IO[bytes]) -> None:
    from pyarrow import parquet

    parquet.write_table(table, file, compression="zstd", row_group_size=2 * COMMIT_ROWS)
