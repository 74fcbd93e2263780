"""How far each consumer has read the events of a deployment; one row of the journal per consumer.

A consumer saves its cursor after its delivery was accepted. After a crash the last delivery is
repeated and none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollout.journal.records import JournalEvent, event_from
from rollout.journal.schema import connect


@dataclass(frozen=True, slots=True)
class Cursor:
    """`seq` is the last event that was delivered; `body` is what the consumer keeps beside it."""

    seq: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)


def run_reader(rollout: int | str) -> str:
    """The name of the place of a rollout's run."""
    return f"run:{rollout}"


class EventCursors:
    """The cursors of all consumers in the journal at `path`. One object per thread."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()

    def cursor(self, deployment: str, reader: str) -> Cursor | None:
        """Return the cursor of `reader`; None before its first delivery."""
        row = self._db.execute(
            "select seq, body from cursor where deployment = ? and reader = ?", (deployment, reader)
        ).fetchone()
        return None if row is None else Cursor(row["seq"], json.loads(row["body"]))

    def put(self, deployment: str, reader: str, cursor: Cursor) -> None:
        """Keep it, unless another process has come further."""
        values = (deployment, reader, cursor.seq, json.dumps(dict(cursor.body), sort_keys=True))
        self._db.execute(
            "insert into cursor values (?, ?, ?, ?) on conflict do update"
            " set seq = excluded.seq, body = excluded.body where excluded.seq >= cursor.seq",
            values,
        )

    def start(self, deployment: str) -> int:
        """Return the initial position of a consumer: just before the event of the last `up`."""
        row = self._db.execute(
            "select max(seq) from event where deployment = ? and kind = 'up'", (deployment,)
        ).fetchone()
        return max(0, (row[0] or 0) - 1)

    def owed(self, deployment: str) -> tuple[int, ...]:
        """The rollouts, under way or ended, whose run is not closed yet."""
        rows = self._db.execute(
            "select id from rollout where deployment = ?1 and not exists (select 1 from cursor"
            " where cursor.deployment = ?1 and reader = ?2 || id and body ->> 'closed')"
            " order by id",
            (deployment, run_reader("")),
        )
        return tuple(row["id"] for row in rows)

    def newest(self, deployment: str, rollout: int, kind: str) -> JournalEvent | None:
        """The newest event of that kind in the rollout."""
        row = self._db.execute(
            "select * from event where deployment = ? and rollout = ? and kind = ?"
            " order by seq desc limit 1",
            (deployment, rollout, kind),
        ).fetchone()
        return None if row is None else event_from(row)

    def of_rollout(
        self, deployment: str, rollout: int, after: int, *, without: str = "", limit: int = 1000
    ) -> tuple[JournalEvent, ...]:
        """The next `limit` events of the rollout after `after`, those of one kind left out."""
        rows = self._db.execute(
            "select * from event where deployment = ? and rollout = ? and seq > ? and kind != ?"
            " order by seq limit ?",
            (deployment, rollout, after, without, limit),
        )
        return tuple(map(event_from, rows.fetchall()))

    def last(self) -> int:
        """The newest event of any deployment."""
        return int(self._db.execute("select max(seq) from event").fetchone()[0] or 0)

    def events(
        self, deployment: str, after: int, until: int, kinds: Sequence[str]
    ) -> tuple[JournalEvent, ...]:
        """The events of these kinds from `after` (left out) to `until`, oldest first.

        It reads that stretch of the journal only, however long the rest is.
        """
        marks = ", ".join("?" * len(kinds))
        rows = self._db.execute(
            "select * from event where seq > ? and seq <= ? and +deployment = ?"  # noqa: S608 - only question marks
            f" and kind in ({marks}) order by seq",
            (after, until, deployment, *kinds),
        )
        return tuple(map(event_from, rows.fetchall()))
