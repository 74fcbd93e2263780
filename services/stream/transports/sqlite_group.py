"""Who of a group reads which partition of a topic: leases in the log's own file.

A lease is a time of the machine's monotonic clock together with its boot, so that setting the
wall clock moves nothing. It only decides who tries: what decides who commits is the epoch of a
partition, which grows with each new owner, and is checked in the transaction of the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bundle.clock import Clock
from services.stream.base import LostPartitionsError, group_in_use, no_group
from services.stream.transports.sqlite_log import Log, Topic

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BEATS = 5
_MINE = "topic = :topic AND team = :team AND part = :part AND owner = :me AND epoch = :epoch"


@dataclass(frozen=True, slots=True)
class Changes:
    """Partitions that came, that another member waits for, and that are another's already."""

    gained: Mapping[int, int]
    wanted_elsewhere: Collection[int] = ()
    lost: Collection[int] = ()


class Membership:
    """One member of the group `team` of `topic`. `start` is where a new group begins.

    A member that did not beat for `lease_s` seconds loses its partitions to the others.
    """

    def __init__(
        self, log: Log, topic: Topic, team: str, start: str, lease_s: float, clock: Clock
    ) -> None:
        self.held: dict[int, int] = {}
        self.me = uuid4().hex
        self._log = log
        self._topic = topic
        self._team = team
        self._latest = start == "latest"
        self._lease = lease_s
        self._clock = clock
        self._boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        """Whether it is time to beat."""
        now = self._clock.monotonic()
        return not self._next - self._lease <= now < self._next

    def beat(self) -> Changes:
        """Stay a member; take what is free and ours, and tell what is to be given up."""
        now = self._clock.monotonic()
        self._next = now + self._lease / _BEATS
        with self._log.transaction():
            members = self._members(now)
            owners = self._owners()
            lost = [p for p, e in self.held.items() if owners[p] != (self.me, e)]
            share = {p for p in owners if members[p % len(members)] == self.me}
            taken = [p for p in share if self._free(owners[p][0], members)]
            gained = {p: self._take(p, owners[p][1] + 1) for p in taken if p not in self.held}
            taken_back = {p: self._take(p, owners[p][1] + 1) for p in taken if p in lost}
        for part in lost:
            del self.held[part]
        gained |= taken_back
        self.held |= {p: owners[p][1] + 1 for p in gained}
        return Changes(gained, [p for p in self.held if p not in share], lost)

    def release(self, parts: Collection[int]) -> None:
        """Give partitions up, so that others take them at once."""
        with self._log.transaction() as db:
            for part in parts:
                epoch = self.held.pop(part)
                statement = f"UPDATE positions SET owner = NULL WHERE {_MINE}"
                db.execute(statement, self._named(part, epoch))

    def leave(self) -> None:
        """Give all partitions up, and the membership."""
        self.release([*self.held])
        with self._log.transaction() as db:
            db.execute("DELETE FROM members WHERE name = ?", (self.me,))

    def forget(self) -> None:
        """Delete the group's position; NOT_FOUND if it has none, JOB_RUNNING if it has a member."""
        key = (self._topic.id, self._team)
        now = self._clock.monotonic()
        with self._log.transaction() as db:
            self._remove_dead(now)
            query = "SELECT count(*) FROM members WHERE topic = ? AND team = ?"
            if db.execute(query, key).fetchone()[0]:
                raise group_in_use(self._team)
            gone = db.execute("DELETE FROM positions WHERE topic = ? AND team = ?", key)
            if not gone.rowcount:
                raise no_group(self._team)

    def advance(self, last: Mapping[int, int]) -> None:
        """Set the committed offsets; inside of the transaction of a commit.

        LostPartitionsError if one of the partitions is not ours any more.
        """
        for part, offset in last.items():
            done = self._log.db.execute(
                f"UPDATE positions SET committed = :offset WHERE {_MINE}",
                {**self._named(part, self.held.get(part, -1)), "offset": offset},
            )
            if done.rowcount != 1:
                raise LostPartitionsError

    def committed(self) -> dict[int, int]:
        """The committed offset of each partition that is ours."""
        found = self._log.db.execute(
            "SELECT part, committed FROM positions WHERE topic = ? AND team = ? AND owner = ?",
            (self._topic.id, self._team, self.me),
        )
        return {part: offset for part, offset in found if part in self.held}

    def committed_by_all(self) -> dict[int, int]:
        """Return the committed offset of each partition that a member of the group ever held."""
        found = self._log.db.execute(
            "SELECT part, committed FROM positions WHERE topic = ? AND team = ?",
            (self._topic.id, self._team),
        )
        return dict(found.fetchall())

    def _members(self, now: float) -> list[str]:
        """Those that live, in the order in which they came; the others are removed."""
        db = self._log.db
        key = (self._topic.id, self._team)
        db.execute(
            "INSERT INTO members (topic, team, name, boot, beat) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET beat = excluded.beat, boot = excluded.boot",
            (*key, self.me, self._boot, now),
        )
        self._remove_dead(now)
        query = "SELECT name FROM members WHERE topic = ? AND team = ? ORDER BY id"
        return [name for (name,) in db.execute(query, key)]

    def _remove_dead(self, now: float) -> None:
        self._log.db.execute(
            "DELETE FROM members WHERE topic = ? AND team = ? AND (boot <> ? OR abs(beat - ?) > ?)",
            (self._topic.id, self._team, self._boot, now, self._lease),
        )

    def _owners(self) -> dict[int, tuple[str | None, int]]:
        """By partition its owner and epoch; a new group's positions are made."""
        db, topic = self._log.db, self._topic
        query = "SELECT part, owner, epoch FROM positions WHERE topic = ? AND team = ?"
        known = {p: (owner, e) for p, owner, e in db.execute(query, (topic.id, self._team))}
        for part in range(topic.partitions):
            if part not in known:
                after = self._log.end(topic, part) if self._latest else self._log.begin(topic, part)
                db.execute(
                    "INSERT INTO positions (topic, team, part, committed) VALUES (?, ?, ?, ?)",
                    (topic.id, self._team, part, after),
                )
                known[part] = (None, 0)
        return known

    def _free(self, owner: str | None, members: Collection[str]) -> bool:
        return owner is None or owner not in members

    def _take(self, part: int, epoch: int) -> int:
        db = self._log.db
        db.execute(
            "UPDATE positions SET owner = ?, epoch = ? WHERE topic = ? AND team = ? AND part = ?",
            (self.me, epoch, self._topic.id, self._team, part),
        )
        query = "SELECT committed FROM positions WHERE topic = ? AND team = ? AND part = ?"
        return int(db.execute(query, (self._topic.id, self._team, part)).fetchone()[0])

    def _named(self, part: int, epoch: int) -> dict[str, object]:
        key = {"topic": self._topic.id, "team": self._team, "part": part}
        return {**key, "me": self.me, "epoch": epoch}
