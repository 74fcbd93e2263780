"""A log of messages in an SQLite file: topics of one or more partitions, each a table.

A row holds as many messages as were appended together, up to a limit, as columns of bytes: a
row for each message would cost more than all the rest of the work on it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Message, Outgoing
from services.stream.transports.records import (
    pack,
    pack_headers,
    pack_keys,
    unpack,
    unpack_headers,
    unpack_keys,
)

_VERSION = 1
_ROW_MESSAGES = 4096
_ROW_BYTES = 1 << 20
_BUSY_SECONDS = 10.0
_NAP_SECONDS = 0.0005
_MOST_PARTITIONS = 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, team TEXT NOT NULL,
    name TEXT NOT NULL, boot TEXT NOT NULL, beat REAL NOT NULL, UNIQUE (topic, team, name)
);
CREATE TABLE IF NOT EXISTS positions (
    topic INTEGER NOT NULL, team TEXT NOT NULL, part INTEGER NOT NULL,
    committed INTEGER NOT NULL, owner TEXT, epoch INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, team, part)
) WITHOUT ROWID;
"""
_ROW = (
    "last INTEGER PRIMARY KEY, count INTEGER, time_ms INTEGER, bodies BLOB, keys BLOB, heads BLOB"
)
_TRYABLE = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL}
)


class Topic(NamedTuple):
    """A topic of a file: its partitions are 0, 1, ... `partitions` - 1."""

    id: int
    name: str
    partitions: int

    def table(self, part: int) -> str:
        """The table of a partition."""
        return f"log_{self.id}_{part}"


class Log:
    """The file at `path`, for one thread; it is made if it is not there and `create` is true."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        if not create and not path.is_file():
            raise MlctlError(ErrorCode.NOT_FOUND, f"there is no file {path}")
        if create and not path.parent.is_dir():
            raise MlctlError(ErrorCode.INVALID_INPUT, f"there is no folder {path.parent}")
        self._turn = 0
        with translate_errors():
            self.db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self.db.close()
                raise

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside becomes durable at its end, or nothing does."""
        with translate_errors():
            self._begin()
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def topic(self, name: str, partitions: int | None = None, *, create: bool = True) -> Topic:
        """The topic of that name, made with `partitions` (or one) if it is not there.

        INVALID_INPUT if it has another number of partitions than the one asked for: messages
        of a key would change their partition. NOT_FOUND without `create`.
        """
        with self.transaction() as db:
            row = db.execute("SELECT * FROM topics WHERE name = ?", (name,)).fetchone()
            if row is None:
                if not create:
                    raise MlctlError(ErrorCode.NOT_FOUND, f"the file has no topic {name!r}")
                return self._new_topic(name, partitions or 1)
        found = Topic(*row)
        if partitions not in {None, found.partitions}:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"topic {name!r} has {found.partitions} partitions, not {partitions}",
                "Leave the option out, or make a new topic.",
            )
        return found

    def end(self, topic: Topic, part: int) -> int:
        """The last offset of a partition; -1 if it never had a message."""
        query = f"SELECT last FROM {topic.table(part)} ORDER BY last DESC LIMIT 1"
        row = self.db.execute(query).fetchone()
        return -1 if row is None else int(row[0])

    def begin(self, topic: Topic, part: int) -> int:
        """The offset before the first message that is still there."""
        query = f"SELECT last - count FROM {topic.table(part)} ORDER BY last LIMIT 1"
        row = self.db.execute(query).fetchone()
        return -1 if row is None else int(row[0])

    def append(self, topic: Topic, messages: Sequence[Outgoing]) -> None:
        """Add messages; inside of a transaction. Those of one key go to one partition."""
        now = int(time.time() * 1000)
        for part, those in self._parted(topic, messages):
            insert = f"INSERT INTO {topic.table(part)} VALUES (?, ?, ?, ?, ?, ?)"
            last = self.end(topic, part)
            for piece in _pieces(those):
                values, keys, headers = zip(*piece, strict=True)
                last += len(piece)
                row = (pack(values), pack_keys(keys), pack_headers(headers))
                self.db.execute(insert, (last, len(piece), now, *row))

    def read(self, topic: Topic, part: int, after: int, limit: int) -> list[Message]:
        """Messages after offset `after`: at least `limit` if so many are there, and few more."""
        query = f"SELECT * FROM {topic.table(part)} WHERE last > ? ORDER BY last"
        found: list[Message] = []
        with translate_errors(), closing(self.db.execute(query, (after,))) as rows:
            for last, count, time_ms, bodies, keys, heads in rows:
                columns = (
                    repeat(str(part), count),
                    range(last - count + 1, last + 1),
                    unpack(bodies, count),
                    unpack_keys(keys, count),
                    unpack_headers(heads, count),
                    repeat(time_ms, count),
                )
                messages = map(Message._make, zip(*columns, strict=True))
                found += [*messages][max(0, after - (last - count)) :]
                if len(found) >= limit:
                    break
        return found

    def forget(self, topic: Topic, older_ms: int, rows: int = 256) -> None:
        """Remove messages that were sent before `older_ms` and that every group has committed.

        At most `rows` rows of each partition at a time. The last row always stays: it tells
        which offset comes next.
        """
        query = "SELECT min(committed) FROM positions WHERE topic = ? AND part = ?"
        for part in range(topic.partitions):
            table = topic.table(part)
            with self.transaction() as db:
                (passed,) = db.execute(query, (topic.id, part)).fetchone()
                most = self.end(topic, part) - 1 if passed is None else passed
                db.execute(
                    f"DELETE FROM {table} WHERE last IN (SELECT last FROM {table} WHERE last <= ? "
                    f"AND time_ms < ? AND last < (SELECT max(last) FROM {table}) "
                    "ORDER BY last LIMIT ?)",
                    (most, older_ms, rows),
                )

    def _begin(self) -> None:
        """Wait for the writers before us: SQLite's own waiting sleeps up to 100 ms at a time."""
        deadline = time.monotonic() + _BUSY_SECONDS
        self.db.execute("PRAGMA busy_timeout = 0")
        try:
            while not self._begun(last=time.monotonic() > deadline):
                time.sleep(_NAP_SECONDS)
        finally:
            self.db.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")

    def _begun(self, *, last: bool) -> bool:
        """Whether the transaction could begin; raises if not and it was the `last` try."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _prepare(self) -> None:
        if self._version() != _VERSION:
            with self.transaction() as db:
                # By now another process may have made it.
                if self._version() != _VERSION:
                    if self._version() or db.execute("SELECT 1 FROM sqlite_master").fetchone():
                        raise MlctlError(
                            ErrorCode.INVALID_INPUT,
                            "the file is no log of messages, or one of another version",
                        )
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {_VERSION}")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("PRAGMA wal_autocheckpoint = 8000")

    def _version(self) -> int:
        return int(self.db.execute("PRAGMA user_version").fetchone()[0])

    def _new_topic(self, name: str, partitions: int) -> Topic:
        if not name or not 1 <= partitions <= _MOST_PARTITIONS:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"a topic needs a name and 1 to {_MOST_PARTITIONS} partitions",
                "Write it as sqlite://events.db#NAME.",
            )
        row = self.db.execute(
            "INSERT INTO topics (name, partitions) VALUES (?, ?) RETURNING *", (name, partitions)
        ).fetchone()
        topic = Topic(*row)
        for part in range(partitions):
            self.db.execute(f"CREATE TABLE {topic.table(part)} ({_ROW})")
        return topic

    def _parted(
        self, topic: Topic, messages: Sequence[Outgoing]
    ) -> Iterator[tuple[int, Sequence[Outgoing]]]:
        if topic.partitions == 1:
            if messages:
                yield 0, messages
            return
        placed = [(self._part(topic, each.key), each) for each in messages]
        placed.sort(key=itemgetter(0))
        for part, those in groupby(placed, itemgetter(0)):
            yield part, [each for _, each in those]

    def _part(self, topic: Topic, key: bytes | None) -> int:
        if key is None:
            self._turn += 1
            return self._turn % topic.partitions
        return crc32(key) % topic.partitions


@contextmanager
def translate_errors() -> Iterator[None]:
    """SQLite's errors as ours: BROKER_UNAVAILABLE for what may pass, DISK_FULL, INVALID_INPUT."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise MlctlError(ErrorCode.DISK_FULL, "there is no space left for messages") from error
        if code in _TRYABLE:
            raise MlctlError(
                ErrorCode.BROKER_UNAVAILABLE, f"the log's file cannot be used: {error}"
            ) from error
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"the file cannot be a log: {error}"
            ) from error
        raise


def _pieces(messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """`messages` in rows of bounded size; a message of its own row may be larger."""
    sizes = [*map(len, map(itemgetter(0), messages))]
    if len(sizes) <= _ROW_MESSAGES and sum(sizes) <= _ROW_BYTES:
        yield messages
        return
    first = held = 0
    for index, size in enumerate(sizes):
        if index > first and (held + size > _ROW_BYTES or index - first == _ROW_MESSAGES):
            yield messages[first:index]
            first, held = index, 0
        held += size
    yield messages[first:]
