"""The database of each scheme of a URL; its driver is imported only where a job uses it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from services.batch.databases.base import Database, QueryReader, TableRef
from services.batch.locations import scheme_of

SCHEMES = ("postgresql", "postgres", "sqlite", "duckdb")


def open_database(table: TableRef, *, locked: bool = True) -> Database:
    """Return the database of `table`, one of SCHEMES; DuckDB locks its file in any case."""
    match scheme_of(table.url):
        case "sqlite":
            from services.batch.databases.sqlite import Sqlite

            return Sqlite(table, locked=locked)
        case "duckdb":
            from services.batch.databases.duckdb import DuckDb

            return DuckDb(table)
        case _:
            from services.batch.databases.postgres import Postgres

            return Postgres(table, locked=locked)


def open_reader(url: str) -> AbstractContextManager[QueryReader]:
    """Open a snapshot of the database at `url`, one of SCHEMES, to read.

    SOURCE_UNAVAILABLE if it cannot be reached or stays locked.
    """
    match scheme_of(url):
        case "sqlite":
            from services.batch.databases.sqlite import read_sqlite

            return read_sqlite(url)
        case "duckdb":
            from services.batch.databases.duckdb import read_duckdb

            return read_duckdb(url)
        case _:
            from services.batch.databases.postgres import read_postgres

            return read_postgres(url)
