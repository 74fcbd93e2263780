"""Partitions in the way of Hive: folders named KEY=VALUE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"


def partitioned(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield each folder, with "/" at its end, and its rows without the columns `by`."""
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
