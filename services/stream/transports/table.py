"""Answers as rows of a SQL table: `postgresql://HOST/DATABASE?table=scores`.

Each field of an answer goes to the column of its name, and `mlctl_source`, the id of its message,
is the primary key. A message that is answered again replaces its own row, so the table has one
row for each answered message after any kill. Any number of runs may write to one table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import quote, urlencode

import orjson
import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.os_errors import translate_os_error
from mlctl.services.batch.databases.base import Database, TableRef
from mlctl.services.batch.databases.drivers import open_database
from mlctl.services.batch.databases.upsert import upsert
from mlctl.services.stream.answer_headers import DIGEST, MODEL, SOURCE, headers_of_answer
from mlctl.services.stream.base import Outgoing, RejectedAnswersError, StreamUrl, Transport

KEY_COLUMN = "mlctl_source"
_TABLE_HINT = (
    f"It needs `{KEY_COLUMN} text PRIMARY KEY` and a column for each field of an answer; "
    "mlctl_digest and mlctl_model are filled if they are there."
)
# Columns for headers of an answer, filled if the table has them.
_HEADER_COLUMNS = {"mlctl_digest": DIGEST, "mlctl_model": MODEL}

Row = Mapping[str, Any]


class TableProducer:
    """Writes the JSON answers of a run into a table."""

    def __init__(self, database: Database, table: TableRef) -> None:
        self._db = database
        self._ref = table
        self._columns: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        """Check the table; INVALID_INPUT without a unique `mlctl_source`, or without the rights."""
        self._db.open()
        try:
            self._check_table()
        except BaseException:
            self._db.close()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._db.close()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Write a row for each message in one transaction.

        SINK_UNAVAILABLE or DISK_FULL: may be repeated. RejectedAnswersError for answers that are
        no rows of this table; the others may have been written, and are written again.
        """
        rows: list[tuple[int, Row]] = []
        rejected: dict[int, str] = {}
        for index, message in enumerate(messages):
            try:
                rows.append((index, self._row(message)))
            except ValueError as error:
                rejected[index] = str(error)
        pending = [rows] if rows and not rejected else []
        while pending:
            part = pending.pop()
            try:
                self._write([row for _index, row in part])
            except MlctlError as error:
                if error.code is not ErrorCode.INVALID_INPUT:
                    raise
                if len(part) == 1:
                    rejected[part[0][0]] = error.message
                    continue
                middle = len(part) // 2
                pending += [part[middle:], part[:middle]]
        if rejected:
            raise RejectedAnswersError(ErrorCode.INVALID_INPUT, rejected)

    def _check_table(self) -> None:
        self._columns = frozenset(self._db.columns(self._ref.table) or ())
        if KEY_COLUMN not in self._columns:
            problem = f"has no column {KEY_COLUMN}" if self._columns else "does not exist"
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{self._ref.shown} {problem}", _TABLE_HINT)
        # Without rows: the database checks rights and the unique key all the same.
        names = [KEY_COLUMN, *sorted(self._columns & _HEADER_COLUMNS.keys())]
        schema = pa.schema([(name, pa.string()) for name in names])
        with self._db.transaction():
            upsert(self._db, self._ref.table, (KEY_COLUMN,), schema.empty_table())

    def _row(self, message: Outgoing) -> Row:
        """Return the columns of an answer; ValueError if the table lacks one of them."""
        headers = headers_of_answer(message, self._ref.shown)
        row: dict[str, Any] = orjson.loads(message.content)
        if missing := row.keys() - self._columns:
            raise ValueError(f"{self._ref.shown} has no column {min(missing)!r}")
        row[KEY_COLUMN] = headers[SOURCE].decode()
        for column, header in _HEADER_COLUMNS.items():
            if column in self._columns:
                row[column] = headers[header].decode()
        return row

    def _write(self, rows: Sequence[Row]) -> None:
        # Another order could deadlock with a run that writes the same rows.
        table = _table(sorted(rows, key=lambda row: str(row[KEY_COLUMN])))
        try:
            with self._db.transaction():
                upsert(self._db, self._ref.table, (KEY_COLUMN,), table)
        except OSError as error:
            raise translate_os_error(error) or error from error


class TableTransport(Transport):
    """A destination of answers."""

    answers_only = True

    def open_producer(self, url: StreamUrl) -> TableProducer:
        if taken := sorted({"key", "create"} & url.options.keys()):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{url.redacted()} has no option {taken[0]!r}",
                f"You create the table; its key is {KEY_COLUMN}.",
            )
        query = urlencode(url.options, quote_via=quote)
        ref = TableRef.parse(f"{url.scheme}://{url.address}?{query}", {})
        return TableProducer(open_database(ref.url, ref.shown), ref)


transport = TableTransport()


def _table(rows: Sequence[Row]) -> pa.Table:
    """Return rows, which may have different fields, as columns."""
    names = sorted({name for row in rows for name in row})
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: Sequence[Any]) -> pa.Array:
    """Return values as Arrow, or as text that the database converts to the type of its column.

    Objects and nested lists are JSON text, and so are values of which Arrow finds no common type.
    """
    if not any(isinstance(value, dict) or _is_nested(value) for value in values):
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values)
    return pa.array([_text(value) for value in values], pa.string())


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, list | dict) for each in value)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
