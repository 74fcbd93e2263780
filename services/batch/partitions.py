"""The files of a commit: parted into folders named KEY=VALUE, in the way of Hive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import UnitResult

if TYPE_CHECKING:
    import pyarrow as pa

# Gives the files of a commit, from results, the stem of their names, and the columns to part them
# by: names below the folder, and what writes the content of each.
Parts = Callable[
    [Sequence[UnitResult], str, tuple[str, ...]], Mapping[str, Callable[[IO[bytes]], None]]
]
NULL = "__HIVE_DEFAULT_PARTITION__"


def text_parts(suffix: str, write: Callable[[pa.Table, IO[bytes]], None]) -> Parts:
    """The files of a form of text, of which `write` writes one."""

    def parts(
        results: Sequence[UnitResult], stem: str, by: tuple[str, ...]
    ) -> Mapping[str, Callable[[IO[bytes]], None]]:
        import pyarrow as pa

        table = pa.concat_tables([result.table for result in results])
        return {
            f"{folder}{stem}{suffix}": partial(write, part)
            for folder, part in partitioned(table, by)
            if part.num_rows
        }

    return parts


def partitioned(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Each folder, with "/" at its end, and the rows that belong there without their keys."""
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
    return NULL if value is None else quote(str(value), safe=" ")
