"""The journal's tables, and connections to them.

WAL with synchronous=FULL: what was decided is on disk before it is acted on. The database
itself rejects a second active rollout and any change of an event; only old ticks are deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError

BUSY_SECONDS = 10.0

# Raised with every change of a table or of the JSON in its columns; other layouts are rejected.
VERSION = 6

SCHEMA = """
create table meta (one integer primary key check (one = 1), epoch integer not null);
insert into meta values (1, 0);

create table deployment (
    name text primary key,
    up integer not null,
    ports text not null,
    settings text not null,
    slot text not null,
    live text not null,
    previous text,
    split text,
    split_record text,
    champion text,
    epoch integer not null,
    created real not null
);

create table process (
    deployment text not null,
    role text not null,
    pid integer not null,
    started real not null,
    token text not null,
    body text not null,
    primary key (deployment, role)
);

create table rollout (
    id integer primary key autoincrement,
    deployment text not null,
    slot text not null,
    live text not null,
    candidate text not null,
    spec text not null,
    progress text not null,
    outcome text,
    created real not null,
    reverts integer
);
create unique index one_active on rollout (deployment) where outcome is null;

create table event (
    seq integer primary key autoincrement,
    deployment text not null,
    rollout integer,
    at real not null,
    epoch integer not null,
    kind text not null,
    body text not null
);
create index event_of on event (deployment, rollout, seq);
create index event_in_order on event (deployment, seq);
-- A rollout of hours has ten thousands of ticks and a few of anything else.
create index rare_in_order on event (deployment, seq) where kind <> 'tick';
create index rare_of on event (deployment, rollout, seq) where kind <> 'tick';
create trigger event_is_final before update on event
begin select raise(abort, 'events are append-only'); end;
create trigger event_stays before delete on event when old.kind <> 'tick'
begin select raise(abort, 'events are append-only'); end;

-- The outbox: how far a sink (the alias, the runs in MLflow, a webhook) has delivered the events.
create table delivery (
    deployment text not null,
    sink text not null,
    seq integer not null,
    failures integer not null,
    error text,
    not_before real not null,
    body text not null,
    primary key (deployment, sink)
);
"""


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection in autocommit mode to the journal at `path`, made if it is not there.

    INVALID_INPUT for one of another layout, or that this user cannot open.
    """
    connection = open_database(path, SCHEMA, VERSION)
    connection.row_factory = sqlite3.Row
    return connection


def open_database(
    path: Path, schema: str, version: int, *, check_same_thread: bool = True
) -> sqlite3.Connection:
    """Return a connection in autocommit mode and WAL to a database of that layout."""
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=check_same_thread,
        )
        if _layout(connection) == (0, 0):
            connection.execute("pragma auto_vacuum = incremental")  # possible in an empty file only
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        if _layout(connection) == (0, 0):
            with transaction(connection):
                if _layout(connection) == (0, 0):  # else another process was faster
                    for statement in _statements(schema):
                        connection.execute(statement)
                    connection.execute(f"pragma user_version = {version}")
        found, _ = _layout(connection)
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    if found != version:
        connection.close()
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{path} was written by another version of mlctl (layout {found}, this one: {version})",
            "Take its deployments down with that version and move the file away, or name another "
            "state directory in MLCTL_HOME.",
        )
    return connection


def _layout(connection: sqlite3.Connection) -> tuple[int, int]:
    """The layout's number and how many tables there are, read together."""
    row = connection.execute(
        "select user_version, (select count(*) from sqlite_master) from pragma_user_version"
    ).fetchone()
    return int(row[0]), int(row[1])


def _statements(schema: str) -> Iterator[str]:
    """The statements of a script, which `executescript` would not run in one transaction."""
    statement = ""
    for line in schema.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _unusable(path: Path, error: sqlite3.OperationalError) -> Exception:
    """The error for a database that cannot be opened or written; others as they are."""
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_FULL:
            return MlctlError(ErrorCode.DISK_FULL, f"there is no space left for {path}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{path} cannot be opened for writing: {error}",
                "Make it and its folder writable for this user, or name another state directory "
                "in MLCTL_HOME.",
            )
    return error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One writing transaction: all of it or, on any exception, nothing."""
    try:
        connection.execute("begin immediate")
    except sqlite3.OperationalError as error:
        path = connection.execute("pragma database_list").fetchone()[2]
        raise _unusable(Path(path), error) from error
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
