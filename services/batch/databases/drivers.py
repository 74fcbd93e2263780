"""The database of each scheme of a URL; its driver is imported only where a job uses it."""

from __future__ import annotations

from mlctl.services.batch.databases.base import Database
from mlctl.services.batch.locations import scheme_of

SCHEMES = ("postgresql", "postgres", "sqlite", "duckdb")


def open_database(url: str, shown: str, lock: str = "") -> Database:
    """Return the database at `url`, one of SCHEMES; the other arguments are those of Database."""
    match scheme_of(url):
        case "sqlite":
            from mlctl.services.batch.databases.sqlite import Sqlite

            return Sqlite(url, shown, lock)
        case "duckdb":
            from mlctl.services.batch.databases.duckdb import DuckDb

            return DuckDb(url, shown, lock)
        case _:
            from mlctl.services.batch.databases.postgres import Postgres

            return Postgres(url, shown, lock)
