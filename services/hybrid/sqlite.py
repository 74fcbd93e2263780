"""Generations in an SQLite file: a table each, one pointer for each digest, many readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from services.hybrid.base import Generation, Row, StoreError, require_sealed, surplus

# Answers that a reader remembers, and keys that it knows to be absent.
_REMEMBERED = 4096
_MMAP_BYTES = 1 << 30
_BUSY_SECONDS = 30.0
# Writers do not keep readers out, but for a moment after the file was made or recovered.
_READ_SECONDS = 0.005
_SCHEMA = """
CREATE TABLE IF NOT EXISTS generations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL, made_at REAL NOT NULL,
    sealed INTEGER NOT NULL DEFAULT 0, flipped_at REAL
);
CREATE TABLE IF NOT EXISTS live (
    digest TEXT PRIMARY KEY, generation INTEGER NOT NULL, previous INTEGER
) WITHOUT ROWID;
"""


class SqliteStore:
    """The generations in the file at `path`, which is made when something is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def reader(self, digest: str, timeout: float) -> SqliteReader:  # noqa: ARG002 - it never waits
        return SqliteReader(self._path, digest)

    def create(self, digest: str, made_at: float) -> int:
        with self._transaction() as db:
            return _create(db, digest, made_at)

    def put(self, generation: int, rows: Sequence[Row]) -> None:
        with self._transaction() as db:
            if _sealed(db, generation) is None:
                require_sealed(generation, None)
            _put(db, generation, rows)

    def write_back(self, digest: str, rows: Sequence[Row]) -> None:
        with self._transaction() as db:
            found = db.execute("SELECT generation FROM live WHERE digest = ?", (digest,)).fetchone()
            if found is None:
                generation = _create(db, digest, rows[0].at, sealed=True)
                _flip(db, generation, rows[0].at)
            else:
                (generation,) = found
            _put(db, generation, rows)

    def seal(self, generation: int) -> None:
        with self._transaction() as db:
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

    def generations(self) -> list[Generation]:
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
        try:
            if self._db is None:
                self._db = _open_to_write(self._path)
            db = self._db
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise MlctlError(
                    ErrorCode.DISK_FULL, "there is no space left for precomputed answers"
                ) from error
            raise StoreError(str(error)) from error
        except sqlite3.Error as error:
            self.close()
            raise StoreError(str(error)) from error


class SqliteReader:
    """Reads on the thread of an event loop: some microseconds, from mapped memory."""

    quick = True

    def __init__(self, path: Path, digest: str) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self._path = path
        self._digest = digest
        self._db: sqlite3.Connection | None = None
        self._version = -1
        self._query: str | None = None
        self._remembered: dict[str, Row | None] = {}

    def get(self, keys: Sequence[str]) -> list[Row | None]:
        try:
            db = self._db
            if db is None:
                if not self._path.exists():
                    return [None] * len(keys)
                db = self._db = self._open()
            # One moment for all of it: a flip comes before the first key or after the last.
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
            self._look_again(db)
            self._version = version

    def _one(self, db: sqlite3.Connection, key: str) -> Row | None:
        remembered = self._remembered
        if key in remembered:
            return remembered[key]
        row = None
        if self._query is not None:
            found = db.execute(self._query, (key,)).fetchone()
            row = None if found is None else Row(key, *found)
        if len(remembered) >= _REMEMBERED:
            remembered.clear()
        remembered[key] = row
        return row

    def _look_again(self, db: sqlite3.Connection) -> None:
        self._remembered.clear()
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


def _create(db: sqlite3.Connection, digest: str, made_at: float, *, sealed: bool = False) -> int:
    values = (digest, made_at, sealed)
    cursor = db.execute(
        "INSERT INTO generations (digest, made_at, sealed) VALUES (?, ?, ?)", values
    )
    number = int(cursor.lastrowid or 0)
    db.execute(
        f"CREATE TABLE {_table(number)} (key TEXT PRIMARY KEY, at REAL NOT NULL, "
        "payload BLOB NOT NULL) WITHOUT ROWID"
    )
    return number


def _put(db: sqlite3.Connection, generation: int, rows: Sequence[Row]) -> None:
    # In order of their keys, whose neighbours share pages.
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
    db.execute("UPDATE live SET previous = NULL WHERE previous = ?", (generation,))
    db.execute("DELETE FROM live WHERE generation = ?", (generation,))


def _sealed(db: sqlite3.Connection, generation: int) -> bool | None:
    """Whether it is complete; None if it is not there."""
    query = "SELECT sealed FROM generations WHERE number = ?"
    found = db.execute(query, (generation,)).fetchone()
    return None if found is None else bool(found[0])


def _generations(db: sqlite3.Connection) -> list[Generation]:
    """All of them, with 0 for the number of rows."""
    return [
        Generation(number, digest, made_at, 0, bool(sealed), flipped_at, bool(live), bool(previous))
        for number, digest, made_at, sealed, flipped_at, live, previous in db.execute(
            "SELECT number, g.digest, made_at, sealed, flipped_at, number IS live.generation, "
            "number IS live.previous FROM generations g LEFT JOIN live USING (digest) "
            "ORDER BY number"
        )
    ]
