"""Add rows to a table; a row with the key of an older one replaces it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import Database, column_list, quoted

_STAGE = "mlctl_stage"


def upsert(db: Database, table: str, key: Sequence[str], rows: pa.Table) -> None:
    """Add `rows` to `table`, and replace those with equal values in the columns `key`.

    For use inside a transaction. INVALID_INPUT if two of `rows` have the same key, or the database
    rejects a value.
    """
    names = rows.schema.names
    columns, keys, target = column_list(names), column_list(key), quoted(table)
    db.run(f"CREATE TEMPORARY TABLE {_STAGE} AS SELECT {columns} FROM {target} WHERE 1 = 0")
    db.load(_STAGE, rows)
    _check_unique(db, key)
    insert = f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {_STAGE} WHERE 1 = 1"
    if db.replaces:
        values = ", ".join(
            f"{column_list([name])} = excluded.{column_list([name])}"
            for name in names
            if name not in key
        )
        action = f"UPDATE SET {values}" if values else "NOTHING"
        db.run(f"{insert} ON CONFLICT ({keys}) DO {action}")
    else:
        db.run(f"DELETE FROM {target} WHERE ({keys}) IN (SELECT ({keys}) FROM {_STAGE})")
        db.run(insert)
    db.run(f"DROP TABLE {_STAGE}")


def _check_unique(db: Database, key: Sequence[str]) -> None:
    """Reject rows with the same key: which of them would stay is not defined."""
    keys = column_list(key)
    twice = db.run(
        f"SELECT {keys} FROM {_STAGE} GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT 1"
    )
    if twice:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the key {', '.join(key)} is not unique in the input: "
            f"{', '.join(map(str, twice[0]))} occurs twice",
            "Take a unique key, or none: each row is then added once.",
        )
