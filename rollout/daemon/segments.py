"""Reading what a server recorded: the Parquet segments of one folder, each one once.

pyarrow is imported when the first segment is read. A segment is whole when it is there, because
the server renames it into the folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.sampling import AT, DIGEST, OUTPUT_PREFIX, REQUEST_ID, ROW, SEGMENT_SUFFIX
from mlctl.rollout.domain.shadow.compare import Answer
from mlctl.rollout.domain.shadow.join import Recorded

_LOG = logging.getLogger(__name__)
_MICROSECONDS = 1e6


@dataclass(slots=True)
class RecordedCost:
    """What was recorded so far: requests, their rows, and bytes on disk."""

    requests: int = 0
    rows: int = 0
    size: int = 0


class Segments:
    """The segments of `folder`, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[Path] = set()
        self.cost = RecordedCost()

    def new(self) -> Iterator[Recorded]:
        """The rows of the segments that were not read yet, without their inputs."""
        there = set(self._folder.glob(f"*{SEGMENT_SUFFIX}"))
        unread = sorted(there - self._seen)
        self._seen = there
        for segment in unread:
            rows = list(_rows(segment))
            self._charge(segment, rows)
            yield from rows

    def _charge(self, segment: Path, rows: list[Recorded]) -> None:
        self.cost.requests += sum(row.key[1] == 0 for row in rows)
        self.cost.rows += len(rows)
        with contextlib.suppress(FileNotFoundError):
            self.cost.size += segment.stat().st_size

    def clear(self) -> None:
        """Remove the segments that were read."""
        for segment in self._seen:
            segment.unlink(missing_ok=True)
        self._seen = set()


def read(segment: Path, prefixes: tuple[str, ...]) -> Any | None:
    """Read the columns whose names start with `prefixes`; None if it is gone or not Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(segment) as file:
            names = [name for name in file.schema_arrow.names if name.startswith(prefixes)]
            return file.read(columns=names)
    except FileNotFoundError:  # the server keeps its folder within a size
        return None
    except (OSError, pa.ArrowException) as error:
        _LOG.warning("the segment %s cannot be read: %s", segment, error)
        return None


def _rows(segment: Path) -> Iterator[Recorded]:
    table = read(segment, (REQUEST_ID, ROW, AT, DIGEST, OUTPUT_PREFIX))
    if table is None:
        return
    names = [name for name in table.column_names if name.startswith(OUTPUT_PREFIX)]
    outputs = [_arrays(table.column(name).combine_chunks()) for name in names]
    keys = zip(table.column(REQUEST_ID).to_pylist(), table.column(ROW).to_pylist(), strict=True)
    digests = table.column(DIGEST).to_pylist()
    times = _seconds(table.column(AT))
    for index, (key, digest, at) in enumerate(zip(keys, digests, times, strict=True)):
        answer: Answer = {
            name.removeprefix(OUTPUT_PREFIX): column[index]
            for name, column in zip(names, outputs, strict=True)
        }
        yield Recorded(key, digest, at, answer, segment, index)


def _seconds(column: Any) -> list[float]:
    """Return the Unix time of each row, which a segment has in microseconds."""
    import pyarrow as pa

    times: list[int] = column.cast(pa.int64()).to_pylist()
    return [each / _MICROSECONDS for each in times]


def _arrays(column: Any) -> list[np.ndarray]:
    """One array per row of a column of values or of lists of them, however deep."""
    import pyarrow as pa

    bounds, depth = np.arange(len(column) + 1), 0
    while pa.types.is_nested(column.type):
        if pa.types.is_fixed_size_list(column.type):
            bounds = bounds * column.type.list_size
        else:
            offsets = column.offsets.to_numpy()
            bounds = offsets[bounds] - offsets[0]
        column, depth = column.flatten(), depth + 1
    values = column.to_numpy(zero_copy_only=False)
    rows = [values[low:high] for low, high in pairwise(bounds)]
    leading = (1,) * max(0, depth - 1)
    return [row.reshape(leading + row.shape) if depth else row.reshape(()) for row in rows]
