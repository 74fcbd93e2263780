"""The sessions on disk (SQLite), so that a restarted service goes on with the same evidence."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.gate_service.session import GateSession
from mlctl.rollout.journal.records import dumps, value_from
from mlctl.rollout.journal.schema import open_database, transaction

_VERSION = 1
_SCHEMA = """
create table session (
    id text primary key,
    blue text not null,
    green text not null,
    spec text not null,
    state text not null,
    touched real not null
);
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session compares, and by which limits; the same from its first tick to its last."""

    blue: str
    green: str
    spec: RolloutSpec


class SessionStore:
    """At most `limit` sessions, each forgotten after `expire_seconds` without a request."""

    def __init__(self, path: Path, clock: Clock, *, limit: int, expire_seconds: float) -> None:
        self._db = open_database(path, _SCHEMA, _VERSION, check_same_thread=False)
        self._lock = threading.Lock()
        self._clock = clock
        self._limit = limit
        self._expire_seconds = expire_seconds

    def close(self) -> None:
        self._db.close()

    def load(self, name: str, terms: Terms) -> GateSession:
        """The session, which is made if there is none.

        INVALID_INPUT if it began with other terms, QUEUE_FULL if there are too many.
        """
        with self._lock:
            self._expire()
            row = self._db.execute(
                "select blue, green, spec, state from session where id = ?", (name,)
            ).fetchone()
            if row is None:
                self._require_room()
                self._put(name, terms, GateSession())
                return GateSession()
        if row[:3] != (terms.blue, terms.green, terms.spec.to_json()):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the session {name!r} began with other sources or limits",
                "Use a new session for each rollout: its uid, for example.",
            )
        return value_from(GateSession, json.loads(row[3]))

    def save(self, name: str, terms: Terms, session: GateSession) -> None:
        """Keep the session as it is now."""
        with self._lock:
            self._put(name, terms, session)

    def forget(self, name: str) -> bool:
        """Drop a session; whether there was one."""
        with self._lock:
            return self._db.execute("delete from session where id = ?", (name,)).rowcount > 0

    def names(self) -> set[str]:
        """The sessions that have not expired."""
        with self._lock:
            self._expire()
            return {row[0] for row in self._db.execute("select id from session").fetchall()}

    def _put(self, name: str, terms: Terms, session: GateSession) -> None:
        values = (
            *(name, terms.blue, terms.green, terms.spec.to_json()),
            *(dumps(session), self._clock.wall()),
        )
        with transaction(self._db):
            self._db.execute("insert or replace into session values (?, ?, ?, ?, ?, ?)", values)

    def _expire(self) -> None:
        oldest = self._clock.wall() - self._expire_seconds
        self._db.execute("delete from session where touched < ?", (oldest,))

    def _require_room(self) -> None:
        if self._db.execute("select count(*) from session").fetchone()[0] >= self._limit:
            raise MlctlError(
                ErrorCode.QUEUE_FULL,
                f"there are {self._limit} sessions already",
                "Sessions expire by themselves, or end one with DELETE /gates/ID.",
            )
