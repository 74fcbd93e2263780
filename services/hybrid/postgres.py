"""Generations in PostgreSQL: rows of all of them in one table, a pointer for each digest."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from services.hybrid.base import Generation, Row, StoreError, require_sealed, surplus

_CONNECT_SECONDS = 5
_SCHEMA = """
CREATE TABLE IF NOT EXISTS mlctl_hybrid_generations (
    number bigserial PRIMARY KEY, name text NOT NULL, digest text NOT NULL,
    made_at double precision NOT NULL, sealed boolean NOT NULL DEFAULT false,
    flipped_at double precision
);
CREATE TABLE IF NOT EXISTS mlctl_hybrid_live (
    name text, digest text, generation bigint NOT NULL, previous bigint,
    PRIMARY KEY (name, digest)
);
CREATE TABLE IF NOT EXISTS mlctl_hybrid_rows (
    generation bigint, key text, at double precision NOT NULL, payload bytea NOT NULL,
    PRIMARY KEY (generation, key)
);
"""
# Two who make the tables at once would fail at each other.
_LOCK = "SELECT pg_advisory_xact_lock(6083517452)"
_GET = """
SELECT key, at, payload FROM mlctl_hybrid_rows WHERE generation = (
    SELECT generation FROM mlctl_hybrid_live WHERE name = %s AND digest = %s
) AND key = ANY(%s)
"""
_PUT = """
INSERT INTO mlctl_hybrid_rows SELECT * FROM mlctl_hybrid_coming
ON CONFLICT (generation, key) DO UPDATE SET at = excluded.at, payload = excluded.payload
"""
_FLIP = """
INSERT INTO mlctl_hybrid_live
SELECT name, digest, number, NULL FROM mlctl_hybrid_generations WHERE number = %s
ON CONFLICT (name, digest) DO UPDATE
SET previous = mlctl_hybrid_live.generation, generation = excluded.generation
WHERE mlctl_hybrid_live.generation <> excluded.generation
"""
_LIST = """
SELECT number, g.digest, made_at,
    CASE WHEN %s THEN (SELECT count(*) FROM mlctl_hybrid_rows r WHERE r.generation = number)
    ELSE 0 END,
    sealed, flipped_at, number = l.generation, number = l.previous
FROM mlctl_hybrid_generations g LEFT JOIN mlctl_hybrid_live l USING (name, digest)
WHERE g.name = %s ORDER BY number
"""


class PostgresStore:
    """The generations called `name` in the database at `url`."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._db: psycopg.Connection[Any] | None = None

    def reader(self, digest: str, timeout: float) -> PostgresReader:
        return PostgresReader(self._url, self._name, digest, timeout)

    def create(self, digest: str, made_at: float) -> int:
        with self._transaction() as db:
            return self._create(db, digest, made_at, sealed=False)

    def put(self, generation: int, rows: Sequence[Row]) -> None:
        with self._transaction() as db:
            if self._sealed(db, generation) is None:
                require_sealed(generation, None)
            _put(db, generation, rows)

    def write_back(self, digest: str, rows: Sequence[Row]) -> None:
        with self._transaction() as db:
            query = "SELECT generation FROM mlctl_hybrid_live WHERE name = %s AND digest = %s"
            found = db.execute(query, (self._name, digest)).fetchone()
            if found is None:
                number = self._create(db, digest, rows[0].at, sealed=True)
                _flip(db, number, rows[0].at)
            else:
                (number,) = found
            _put(db, number, rows)

    def seal(self, generation: int) -> None:
        with self._transaction() as db:
            db.execute(
                "UPDATE mlctl_hybrid_generations SET sealed = true WHERE number = %s", (generation,)
            )
            db.execute("ANALYZE mlctl_hybrid_rows")  # so that lookups are planned well at once

    def flip(self, generation: int, at: float) -> None:
        with self._transaction() as db:
            require_sealed(generation, self._sealed(db, generation))
            _flip(db, generation, at)
            for each in surplus(self._list(db, counted=False)):
                _drop(db, each.number)

    def drop(self, generation: int) -> None:
        with self._transaction() as db:
            _drop(db, generation)

    def generations(self) -> list[Generation]:
        with self._transaction() as db:
            return self._list(db, counted=True)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _create(
        self, db: psycopg.Connection[Any], digest: str, made_at: float, *, sealed: bool
    ) -> int:
        found = db.execute(
            "INSERT INTO mlctl_hybrid_generations (name, digest, made_at, sealed) "
            "VALUES (%s, %s, %s, %s) RETURNING number",
            (self._name, digest, made_at, sealed),
        ).fetchone()
        assert found is not None
        return int(found[0])

    def _sealed(self, db: psycopg.Connection[Any], generation: int) -> bool | None:
        query = "SELECT sealed FROM mlctl_hybrid_generations WHERE number = %s AND name = %s"
        found = db.execute(query + " FOR UPDATE", (generation, self._name)).fetchone()
        return None if found is None else bool(found[0])

    def _list(self, db: psycopg.Connection[Any], *, counted: bool) -> list[Generation]:
        return [
            Generation(number, digest, made_at, rows, sealed, flipped, bool(live), bool(previous))
            for number, digest, made_at, rows, sealed, flipped, live, previous in db.execute(
                _LIST, (counted, self._name)
            )
        ]

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            if self._db is None:
                self._db = psycopg.connect(
                    self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS
                )
                with self._db.transaction():
                    self._db.execute(_LOCK)
                    self._db.execute("SET LOCAL client_min_messages = warning")
                    self._db.execute(_SCHEMA)
            with self._db.transaction():
                yield self._db
        except psycopg.Error as error:
            self.close()
            raise StoreError(str(error)) from error


class PostgresReader:
    """Reads in one round trip, over as many connections as threads ask at once."""

    quick = False

    def __init__(self, url: str, name: str, digest: str, timeout: float) -> None:
        self._url = url
        self._of = (name, digest)
        self._options = f"-c statement_timeout={max(1, round(timeout * 1000))}"
        self._idle: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()

    def get(self, keys: Sequence[str]) -> list[Row | None]:
        try:
            db = self._connection()
            try:
                rows = db.execute(_GET, (*self._of, list(keys)), prepare=True, binary=True)
                found = {key: Row(key, at, payload) for key, at, payload in rows}
            except psycopg.errors.UndefinedTable:
                found = {}  # nothing was ever written
            except BaseException:
                db.close()
                raise
        except psycopg.Error as error:
            raise StoreError(str(error)) from error
        self._idle.put(db)
        return [found.get(key) for key in keys]

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()

    def _connection(self) -> psycopg.Connection[Any]:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                options=self._options,
            )


def list_names(url: str) -> list[str]:
    """The names of all answers in the database at `url`."""
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_SECONDS) as db:
            found = db.execute("SELECT DISTINCT name FROM mlctl_hybrid_generations ORDER BY 1")
            return [name for (name,) in found]
    except psycopg.errors.UndefinedTable:
        return []
    except psycopg.Error as error:
        raise StoreError(str(error)) from error


def _put(db: psycopg.Connection[Any], generation: int, rows: Sequence[Row]) -> None:
    db.execute(
        "CREATE TEMP TABLE IF NOT EXISTS mlctl_hybrid_coming (LIKE mlctl_hybrid_rows) "
        "ON COMMIT DELETE ROWS"
    )
    columns = ("int8", "text", "float8", "bytea")
    with db.cursor() as cursor:
        with cursor.copy("COPY mlctl_hybrid_coming FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(columns)
            # Of rows with the same key the last one counts.
            for row in {row.key: row for row in rows}.values():
                copy.write_row((generation, *row))
        cursor.execute(_PUT)


def _flip(db: psycopg.Connection[Any], generation: int, at: float) -> None:
    db.execute(
        "UPDATE mlctl_hybrid_generations SET flipped_at = %s WHERE number = %s", (at, generation)
    )
    db.execute(_FLIP, (generation,))


def _drop(db: psycopg.Connection[Any], generation: int) -> None:
    for statement in (
        "DELETE FROM mlctl_hybrid_rows WHERE generation = %s",
        "DELETE FROM mlctl_hybrid_generations WHERE number = %s",
        "UPDATE mlctl_hybrid_live SET previous = NULL WHERE previous = %s",
        "DELETE FROM mlctl_hybrid_live WHERE generation = %s",
    ):
        db.execute(statement, (generation,))
