"""The journal's tables, and connections to them.

WAL with synchronous=FULL: what was decided is on disk before it is acted on. The database
itself refuses a second active rollout and any change of an event.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError

BUSY_SECONDS = 10.0

SCHEMA = """
create table if not exists meta (one integer primary key check (one = 1), epoch integer not null);
insert or ignore into meta values (1, 0);

create table if not exists deployment (
    name text primary key,
    up integer not null,
    ports text not null,
    settings text not null,
    colour text not null,
    live text not null,
    champion text,
    epoch integer not null,
    created real not null
);

create table if not exists process (
    deployment text not null,
    role text not null,
    pid integer not null,
    started real not null,
    token text not null,
    body text not null,
    primary key (deployment, role)
);

create table if not exists rollout (
    id integer primary key autoincrement,
    deployment text not null,
    colour text not null,
    live text not null,
    candidate text not null,
    spec text not null,
    progress text not null,
    outcome text,
    created real not null
);
create unique index if not exists one_active on rollout (deployment) where outcome is null;

create table if not exists event (
    seq integer primary key autoincrement,
    deployment text not null,
    rollout integer,
    at real not null,
    epoch integer not null,
    kind text not null,
    body text not null
);
create index if not exists event_of on event (deployment, rollout, seq);
create index if not exists event_in_order on event (deployment, seq);
-- A rollout of hours has ten thousands of ticks and a few of anything else.
create index if not exists rare_in_order on event (deployment, seq) where kind <> 'tick';
create index if not exists rare_of on event (deployment, rollout, seq) where kind <> 'tick';
create trigger if not exists event_is_final before update on event
begin select raise(abort, 'events are append-only'); end;
create trigger if not exists event_stays before delete on event
begin select raise(abort, 'events are append-only'); end;

-- How far a reader has told the events of a deployment elsewhere: a webhook, a run in MLflow.
create table if not exists told (
    deployment text not null,
    reader text not null,
    seq integer not null,
    body text not null,
    primary key (deployment, reader)
);

-- Journals from before there were replicas and other proxies.
update or ignore process set role = role || '/0' where role in ('blue', 'green');
update or ignore process set role = 'proxy' where role = 'envoy';
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode to the journal at `path`, made if it is not there."""
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.executescript(SCHEMA)
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    return connection


def _unusable(path: Path, error: sqlite3.OperationalError) -> Exception:
    """What to tell of a journal that cannot be opened or written; other errors as they are."""
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_FULL:
            return MlctlError(ErrorCode.DISK_FULL, f"there is no space left for {path}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the journal {path} cannot be opened for writing: {error}",
                "Make it and its folder writable for this user, or name another state directory "
                "in MLCTL_HOME.",
            )
    return error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One writing transaction: all of it or, on any exception, nothing."""
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
