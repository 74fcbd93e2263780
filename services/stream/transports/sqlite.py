"""Streams in an SQLite file, exactly once: answers, dead letters and position in one transaction.

`sqlite://events.db#orders`, with an absolute path `sqlite:///var/lib/events.db#orders`. Options:
`retention` in seconds, `lease` in seconds.

All messages of a file are rows of one table. A rowid is a topic's number and an offset, so a topic
is a range of rowids.

One consumer of a group reads at a time, and the others stand by. A lease decides which one reads.
Ownership is checked again in the transaction of each commit, so neither a consumer whose lease
expired nor a clock that is set can cause a second answer.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import orjson

from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    ABANDONED_SECONDS,
    Commit,
    ConnectionRequest,
    GroupStatus,
    Guarantee,
    Headers,
    LostPartitionsError,
    Message,
    Outgoing,
    StreamConnection,
    StreamStatus,
    StreamUrl,
    Transport,
    group_in_use,
    no_group,
)

_VERSION = 3
_OPTIONS = frozenset({"retention", "lease"})
_PARTITION = "0"
_LEASE_SECONDS = 10.0
_RENEWALS_PER_LEASE = 5
_BUSY_SECONDS = 10.0
_MIN_SLEEP, _MAX_SLEEP = 0.0005, 0.016
_PAGE = 4096
# How often retention runs, how long it may take, and how many messages one transaction deletes.
_RETENTION_SECONDS, _RETENTION_BUDGET, _RETENTION_MESSAGES = 5.0, 0.25, 10_000
_OFFSET_BITS = 40
_TRANSIENT = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL}
)
_SCHEMA = """
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, value BLOB NOT NULL, key BLOB, headers TEXT
);
CREATE TABLE positions (
    topic TEXT NOT NULL, consumers TEXT NOT NULL, committed INTEGER NOT NULL,
    owner TEXT, renewed REAL NOT NULL, lease REAL NOT NULL,
    PRIMARY KEY (topic, consumers)
) WITHOUT ROWID;
"""
# In the column `value`, which is never null, a number is no message's bytes.
_NULL = 0
_OF_GROUP = "topic = :topic AND consumers = :group"
_EXPIRED = "(owner IS NULL OR abs(renewed - :now) > lease)"


class Topic(NamedTuple):
    """A topic of a file; `base` is the rowid of its offset 0."""

    name: str
    base: int


class Log:
    """The file at `path`, for one thread; it is created unless `create` is false."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        if not create and not path.is_file():
            raise MlctlError(ErrorCode.NOT_FOUND, f"there is no file {path}")
        if create and not path.parent.is_dir():
            raise MlctlError(ErrorCode.INVALID_INPUT, f"there is no folder {path.parent}")
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
        """Make everything that is written inside durable at the end, or nothing of it."""
        with translate_errors():
            self._begin()
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def topic(self, name: str, *, create: bool = True) -> Topic:
        """Return the topic of that name; NOT_FOUND if it does not exist and `create` is false."""
        with self.transaction() as db:
            query = "SELECT id FROM topics WHERE name = ?"
            row = db.execute(query, (name,)).fetchone()
            if row is None and create:
                insert = "INSERT INTO topics (name) VALUES (?) RETURNING id"
                row = db.execute(insert, (name,)).fetchone()
        if row is None:
            raise MlctlError(ErrorCode.NOT_FOUND, f"the file has no topic {name!r}")
        return Topic(name, row[0] << _OFFSET_BITS)

    def first_offset(self, topic: Topic) -> int:
        """Return the first offset that is still stored, 0 if there is none."""
        return self._edge(topic, "ASC", 0)

    def last_offset(self, topic: Topic) -> int:
        """Return the last offset, -1 if there is none."""
        return self._edge(topic, "DESC", -1)

    def count_after(self, topic: Topic, committed: int) -> int:
        """Return the number of messages after the offset `committed`."""
        # Retention may have removed messages that an abandoned group had not committed.
        first = max(committed + 1, self.first_offset(topic))
        return max(self.last_offset(topic) + 1 - first, 0)

    def append(self, topic: Topic, messages: Sequence[Outgoing]) -> None:
        """Add messages; call it inside a transaction."""
        now = int(time.time() * 1000)
        first = topic.base + self.last_offset(topic) + 1
        self.db.executemany(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
            [
                (at, now, _NULL if value is None else value, key, _packed(headers) or None)
                for at, (value, key, headers) in enumerate(messages, first)
            ],
        )

    def read(self, topic: Topic, after: int, limit: int) -> list[Message]:
        """Return up to `limit` messages after the offset `after`."""
        base = topic.base
        query = (
            "SELECT id, value, key, headers, time_ms FROM messages "
            "WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
        )
        with translate_errors():
            rows = self.db.execute(query, (base + after, base + (1 << _OFFSET_BITS), limit))
            return [
                Message(
                    _PARTITION,
                    at - base,
                    None if value == _NULL else value,
                    key,
                    _unpacked(text) if text else (),
                    sent,
                )
                for at, value, key, text, sent in rows
            ]

    def remove_old(self, topic: Topic, older_ms: int) -> None:
        """Remove messages sent before `older_ms`, unless an active group has not committed them.

        The last message stays: it says which offset comes next.
        """
        committed = "SELECT min(committed) FROM positions WHERE topic = ? AND renewed > ?"
        statement = (
            "DELETE FROM messages WHERE id IN (SELECT id FROM (SELECT id, time_ms FROM messages "
            "WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?) WHERE time_ms < ?)"
        )
        removed, stop = _RETENTION_MESSAGES, time.monotonic() + _RETENTION_BUDGET
        while removed == _RETENTION_MESSAGES and time.monotonic() < stop:
            with self.transaction() as db:
                active = time.time() - ABANDONED_SECONDS
                (needed,) = db.execute(committed, (topic.name, active)).fetchone()
                last = self.last_offset(topic) - 1
                last = last if needed is None else min(last, needed)
                bounds = (topic.base, topic.base + last, _RETENTION_MESSAGES, older_ms)
                removed = db.execute(statement, bounds).rowcount

    def _edge(self, topic: Topic, order: str, default: int) -> int:
        query = f"SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id {order} LIMIT 1"
        bounds = (topic.base, topic.base + (1 << _OFFSET_BITS))
        row = self.db.execute(query, bounds).fetchone()
        return default if row is None else int(row[0]) - topic.base

    def _begin(self) -> None:
        """Begin a transaction; SQLite's own busy handler would sleep up to 100 ms at a time."""
        deadline = time.monotonic() + _BUSY_SECONDS
        self.db.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    self.db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                    if not busy or time.monotonic() > deadline:
                        raise
                    time.sleep(_MIN_SLEEP)
                else:
                    return
        finally:
            self.db.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")

    def _prepare(self) -> None:
        with self.transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                if version or db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise MlctlError(
                        ErrorCode.INVALID_INPUT,
                        "the file is not a log of messages, or has another version",
                    )
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        # A commit copies the write-ahead log into the file when it has this many pages, here 8 MB,
        # and the others wait: four times as many double the longest commit and save no CPU.
        self.db.execute("PRAGMA wal_autocheckpoint = 2000")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate SQLite's errors: BROKER_UNAVAILABLE if transient, DISK_FULL, INVALID_INPUT."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise MlctlError(ErrorCode.DISK_FULL, "no space is left for messages") from error
        if code in _TRANSIENT:
            raise MlctlError(
                ErrorCode.BROKER_UNAVAILABLE, f"the log's file cannot be used: {error}"
            ) from error
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"the file cannot be a log of messages: {error}"
            ) from error
        raise


class SqliteConnection(StreamConnection):
    """A consumer of a topic, and the producer of answers and dead letters in the same file."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, request: ConnectionRequest, clock: Clock | None = None) -> None:
        self._request = request
        self._clock = clock or SystemClock()
        self._lease = request.source.number("lease", _LEASE_SECONDS)
        self._key = {"topic": request.source.topic, "group": request.group, "me": uuid4().hex}
        self._next_renewal = float("-inf")
        # The offset of the last message that poll() returned; None while another member owns it.
        self._position: int | None = None

    def __enter__(self) -> Self:
        request = self._request
        self._log = Log(_path(request.source))
        try:
            self._topic = self._log.topic(request.source.topic)
            self._answers = request.answers and self._log.topic(request.answers.topic)
            self._dead = request.dead and self._log.topic(request.dead.topic)
            urls = (request.source, request.answers, request.dead)
            self._retention = [_Retention(self._log, url, self._clock) for url in urls if url]
        except BaseException:
            self._log.close()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        try:
            with self._log.transaction() as db:
                statement = f"UPDATE positions SET owner = NULL WHERE {_OF_GROUP} AND owner = :me"
                db.execute(statement, self._key)
        except (MlctlError, sqlite3.Error):
            pass  # The lease expires.
        finally:
            self._log.close()

    @property
    def takeover_s(self) -> float:
        """The option `lease`."""
        return self._lease

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        deadline = time.monotonic() + wait_s
        sleep = _MIN_SLEEP
        while True:
            now = self._clock.wall()
            if not self._next_renewal - self._lease <= now < self._next_renewal:
                self._renew(now)
                for retention in self._retention:
                    retention.apply()
            found = []
            if limit and self._position is not None:
                found = self._log.read(self._topic, self._position, limit)
            left = deadline - time.monotonic()
            if found:
                self._position = int(found[-1].offset)
            if found or not limit or left <= 0:
                return found
            time.sleep(min(sleep, left))
            sleep = min(2 * sleep, _MAX_SLEEP)

    def commit(self, batch: Commit) -> None:
        with self._log.transaction() as db:
            if batch.done:
                done = db.execute(
                    f"UPDATE positions SET committed = :offset WHERE {_OF_GROUP} AND owner = :me",
                    {**self._key, "offset": int(batch.done[-1].offset)},
                )
                if done.rowcount != 1:
                    self._position = None
                    raise LostPartitionsError
            if self._answers and batch.answers:
                self._log.append(self._answers, batch.answers)
            if self._dead and batch.dead:
                self._log.append(self._dead, batch.dead)

    def lag(self) -> Mapping[str, int]:
        return {} if self._position is None else {_PARTITION: self.group_lag()}

    def group_lag(self) -> int:
        query = f"SELECT committed FROM positions WHERE {_OF_GROUP}"
        with translate_errors():
            row = self._log.db.execute(query, self._key).fetchone()
            return self._log.count_after(self._topic, row[0] if row else self._start())

    def _start(self) -> int:
        """Return the position of a new group."""
        if self._request.start == "latest":
            return self._log.last_offset(self._topic)
        return self._log.first_offset(self._topic) - 1

    def _renew(self, now: float) -> None:
        """Renew the lease, or take it if it is free or expired."""
        self._next_renewal = now + self._lease / _RENEWALS_PER_LEASE
        with self._log.transaction() as db:
            values = {**self._key, "start": self._start(), "now": now, "lease": self._lease}
            db.execute(
                "INSERT OR IGNORE INTO positions "
                "VALUES (:topic, :group, :start, NULL, :now, :lease)",
                values,
            )
            query = f"SELECT owner = :me, committed FROM positions WHERE {_OF_GROUP}"
            owned, committed = db.execute(query, values).fetchone()
            taken = db.execute(
                "UPDATE positions SET owner = :me, renewed = :now, lease = :lease "
                f"WHERE {_OF_GROUP} AND (owner = :me OR {_EXPIRED})",
                values,
            ).rowcount
        if self._position is not None and not owned:
            self._position = None
            if self.listener:
                self.listener.lost([_PARTITION])
        if taken and self._position is None:
            self._position = committed


class SqliteProducer:
    """Appends messages to one topic."""

    def __init__(self, url: StreamUrl) -> None:
        self._url = url

    def __enter__(self) -> Self:
        self._log = Log(_path(self._url))
        try:
            self._topic = self._log.topic(self._url.topic)
            self._retention = _Retention(self._log, self._url, SystemClock())
        except BaseException:
            self._log.close()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._log.close()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        with self._log.transaction():
            self._log.append(self._topic, messages)
        self._retention.apply()


class SqliteTransport(Transport):
    """Streams in files of this machine."""

    def open_connection(self, request: ConnectionRequest) -> SqliteConnection:
        return SqliteConnection(request)

    def open_producer(self, url: StreamUrl) -> SqliteProducer:
        return SqliteProducer(url)

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        with _existing(url) as (log, topic):
            end = log.last_offset(topic)
            at = -1 if last is None else end - last
            while at < end and (page := log.read(topic, at, _PAGE)):
                at = int(page[-1].offset)
                yield from page

    def status(self, url: StreamUrl, group: str) -> StreamStatus:
        with _existing(url) as (log, topic), translate_errors():
            now = time.time()
            rows = log.db.execute(
                f"SELECT consumers, committed, NOT {_EXPIRED}, renewed FROM positions "
                "WHERE topic = :topic ORDER BY consumers",
                {"topic": topic.name, "now": now},
            ).fetchall()
            groups = [
                GroupStatus(name, log.count_after(topic, committed), members, now - renewed)
                for name, committed, members, renewed in rows
            ]
            return StreamStatus(
                Guarantee.EXACTLY_ONCE,
                f"SQLite {sqlite3.sqlite_version}",
                log.count_after(topic, -1),
                next(({_PARTITION: each.lag or 0} for each in groups if each.name == group), None),
                tuple(groups),
            )

    def forget_group(self, url: StreamUrl, group: str) -> None:
        with _existing(url) as (log, topic), log.transaction() as db:
            values = {"topic": topic.name, "group": group, "now": time.time()}
            statement = f"DELETE FROM positions WHERE {_OF_GROUP} AND {_EXPIRED}"
            if db.execute(statement, values).rowcount:
                return
            query = f"SELECT 1 FROM positions WHERE {_OF_GROUP}"
            raise group_in_use(group) if db.execute(query, values).fetchone() else no_group(group)


transport = SqliteTransport()


class _Retention:
    """Removes messages older than the URL's option `retention`, every few seconds."""

    def __init__(self, log: Log, url: StreamUrl, clock: Clock) -> None:
        self._log = log
        self._topic = log.topic(url.topic)
        self._seconds = url.number("retention", 0.0)
        self._clock = clock
        self._next = float("-inf")

    def apply(self) -> None:
        now = self._clock.monotonic()
        if self._seconds and now >= self._next:
            self._next = now + _RETENTION_SECONDS
            self._log.remove_old(self._topic, int((time.time() - self._seconds) * 1000))


def _packed(headers: Headers) -> str:
    """Return headers as JSON, empty for none; each byte of a value is one character."""
    if not headers:
        return ""
    pairs = [(name, None if each is None else each.decode("latin-1")) for name, each in headers]
    return orjson.dumps(pairs).decode()


def _unpacked(text: str) -> Headers:
    pairs = orjson.loads(text)
    return tuple((name, None if each is None else each.encode("latin-1")) for name, each in pairs)


@contextmanager
def _existing(url: StreamUrl) -> Iterator[tuple[Log, Topic]]:
    """Open a file and a topic that exist; NOT_FOUND otherwise."""
    with closing(Log(_path(url), create=False)) as log:
        yield log, log.topic(url.topic, create=False)


def _path(url: StreamUrl) -> Path:
    url.check_topic("sqlite://events.db#orders")
    url.check_options(_OPTIONS)
    return Path(url.address)
