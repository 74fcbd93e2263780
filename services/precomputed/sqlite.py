"""Generations in an SQLite file: a table of rows each, a pointer per digest, many readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.precomputed.base import (
    NO_UNITS,
    JobRecord,
    PrecomputedRow,
    StoredGeneration,
    StoreError,
    dropped,
    require_sealed,
    rows_lost,
    surplus,
)

# Rows that a reader caches, including keys without a row.
_CACHED_ROWS = 4096
_MMAP_BYTES = 1 << 30
_BUSY_SECONDS = 30.0
# Writers block readers only for a moment after the file was created or recovered.
_READ_SECONDS = 0.005
_SCHEMA = """
CREATE TABLE IF NOT EXISTS generations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL, made_at REAL NOT NULL,
    sealed INTEGER NOT NULL DEFAULT 0, flipped_at REAL, job TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS live (
    digest TEXT PRIMARY KEY, generation INTEGER NOT NULL, previous INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS units (
    generation INTEGER, id TEXT, record TEXT NOT NULL, PRIMARY KEY (generation, id)
) WITHOUT ROWID;
"""


class SqliteStore:
    """The generations in the file `path`, which the first write creates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def reader(self, digest: str, timeout: float) -> SqliteReader:  # noqa: ARG002 - it never waits
        return SqliteReader(self._path, digest)

    def create(self, digest: str, made_at: float, job: str = "") -> int:
        with self._transaction() as db:
            return _create(db, digest, made_at, job)

    def commit(
        self,
        generation: int,
        rows: Sequence[PrecomputedRow],
        units: Mapping[str, str] = NO_UNITS,
        committed: int = 0,
    ) -> None:
        with self._transaction() as db:
            _check(db, generation, committed)
            _put(db, generation, rows)
            db.executemany(
                "INSERT OR REPLACE INTO units VALUES (?, ?, ?)",
                [(generation, key, record) for key, record in units.items()],
            )

    def record(self, generation: int) -> JobRecord | None:
        with self._transaction() as db:
            query = "SELECT job FROM generations WHERE number = ?"
            found = db.execute(query, (generation,)).fetchone()
            if found is None or not found[0]:
                return None
            units = db.execute("SELECT id, record FROM units WHERE generation = ?", (generation,))
            # Rows and units are committed in one transaction, so no rows are lost.
            return JobRecord(found[0], dict(units))

    def seal(self, generation: int, committed: int = 0) -> None:
        with self._transaction() as db:
            _check(db, generation, committed)
            db.execute("UPDATE generations SET sealed = 1 WHERE number = ?", (generation,))

    def flip(self, generation: int, at: float) -> None:
        with self._transaction() as db:
            require_sealed(generation, _sealed(db, generation))
            _flip(db, generation, at)
            for each in surplus(_generations(db)):
                _drop(db, each.number)

    def drop(self, generation: int) -> None:
        with self._transaction() as db:
            _drop(db, generation)

    def generations(self) -> list[StoredGeneration]:
        if not self._path.exists():
            return []
        with self._transaction() as db:
            return [replace(each, rows=_count(db, each.number)) for each in _generations(db)]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translate_errors() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translate_errors(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection; translate errors of SQLite to StoreError or DISK_FULL."""
        try:
            if self._db is None:
                self._db = _open_to_write(self._path)
            yield self._db
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise MlctlError(
                    ErrorCode.DISK_FULL, "there is no space left for precomputed predictions"
                ) from error
            raise StoreError(str(error)) from error
        except sqlite3.Error as error:
            self.close()
            raise StoreError(str(error)) from error


class SqliteReader:
    """Reads from mapped memory within microseconds, so it may run on the event loop."""

    quick = True

    def __init__(self, path: Path, digest: str) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self._path = path
        self._digest = digest
        self._db: sqlite3.Connection | None = None
        self._version = -1
        self._query: str | None = None
        self._cache: dict[str, PrecomputedRow | None] = {}

    def get(self, keys: Sequence[str]) -> list[PrecomputedRow | None]:
        try:
            db = self._db
            if db is None:
                if not self._path.exists():
                    return [None] * len(keys)
                db = self._db = self._open()
            # One snapshot for all keys, so that a flip affects all of them or none.
            db.execute("BEGIN")
            try:
                self._check_version(db)
                return [self._one(db, key) for key in keys]
            finally:
                db.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            raise StoreError(str(error)) from error

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._version = None, -1

    def _check_version(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if version != self._version:  # another connection has written
            self._reload(db)
            self._version = version

    def _one(self, db: sqlite3.Connection, key: str) -> PrecomputedRow | None:
        cache = self._cache
        if key in cache:
            return cache[key]
        row = None
        if self._query is not None:
            found = db.execute(self._query, (key,)).fetchone()
            row = None if found is None else PrecomputedRow(key, *found)
        if len(cache) >= _CACHED_ROWS:
            cache.clear()
        cache[key] = row
        return row

    def _reload(self, db: sqlite3.Connection) -> None:
        self._cache.clear()
        found = db.execute(
            "SELECT generation FROM live WHERE digest = ?", (self._digest,)
        ).fetchone()
        self._query = None
        if found is not None:
            self._query = f"SELECT at, payload FROM {_table(found[0])} WHERE key = ?"  # noqa: S608

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._uri,
            uri=True,
            isolation_level=None,
            timeout=_READ_SECONDS,
            check_same_thread=False,
        )
        db.execute(f"PRAGMA mmap_size={_MMAP_BYTES}")
        return db


def _open_to_write(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _table(generation: int) -> str:
    return f"rows_{int(generation)}"


def _create(db: sqlite3.Connection, digest: str, made_at: float, job: str) -> int:
    cursor = db.execute(
        "INSERT INTO generations (digest, made_at, job, sealed) VALUES (?, ?, ?, 0)",
        (digest, made_at, job),
    )
    number = int(cursor.lastrowid or 0)
    db.execute(
        f"CREATE TABLE {_table(number)} (key TEXT PRIMARY KEY, at REAL NOT NULL, "
        "payload BLOB NOT NULL) WITHOUT ROWID"
    )
    return number


def _put(db: sqlite3.Connection, generation: int, rows: Sequence[PrecomputedRow]) -> None:
    # Sorted, because neighbouring keys share pages.
    insert = f"INSERT OR REPLACE INTO {_table(generation)} VALUES (?, ?, ?)"  # noqa: S608
    db.executemany(insert, sorted(rows))


def _count(db: sqlite3.Connection, generation: int) -> int:
    found = db.execute(f"SELECT count(*) FROM {_table(generation)}")  # noqa: S608 - a number
    return int(found.fetchone()[0])


def _flip(db: sqlite3.Connection, generation: int, at: float) -> None:
    db.execute("UPDATE generations SET flipped_at = ? WHERE number = ?", (at, generation))
    db.execute(
        "INSERT INTO live SELECT digest, number, NULL FROM generations WHERE number = ? "
        "ON CONFLICT (digest) DO UPDATE SET previous = live.generation, "
        "generation = excluded.generation WHERE live.generation != excluded.generation",
        (generation,),
    )


def _drop(db: sqlite3.Connection, generation: int) -> None:
    db.execute(f"DROP TABLE IF EXISTS {_table(generation)}")
    db.execute("DELETE FROM generations WHERE number = ?", (generation,))
    db.execute("DELETE FROM units WHERE generation = ?", (generation,))
    db.execute("UPDATE live SET previous = NULL WHERE previous = ?", (generation,))
    db.execute("DELETE FROM live WHERE generation = ?", (generation,))


def _check(db: sqlite3.Connection, generation: int, committed: int) -> None:
    """Raise unless the generation exists and has at least `committed` units."""
    if _sealed(db, generation) is None:
        raise dropped(generation)
    query = "SELECT count(*) FROM units WHERE generation = ?"
    if db.execute(query, (generation,)).fetchone()[0] < committed:
        raise rows_lost(generation)


def _sealed(db: sqlite3.Connection, generation: int) -> bool | None:
    """Return whether a generation is complete; None if it does not exist."""
    query = "SELECT sealed FROM generations WHERE number = ?"
    found = db.execute(query, (generation,)).fetchone()
    return None if found is None else bool(found[0])


def _generations(db: sqlite3.Connection) -> list[StoredGeneration]:
    """Return all generations, with 0 as their number of rows."""
    return [
        StoredGeneration(
            number, digest, made_at, 0, bool(sealed), flipped_at, bool(live), bool(previous)
        )
        for number, digest, made_at, sealed, flipped_at, live, previous in db.execute(
            "SELECT number, g.digest, made_at, sealed, flipped_at, number IS live.generation, "
            "number IS live.previous FROM generations g LEFT JOIN live USING (digest) "
            "ORDER BY number"
        )
    ]
