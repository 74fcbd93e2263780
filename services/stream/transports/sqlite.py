"""Streams in an SQLite file: answers, dead letters and the position in one transaction.

`sqlite://events.db#orders`, with an absolute path `sqlite:///var/lib/events.db#orders`. Options:
`partitions` of a topic that is made, `retention` in seconds, `lease` in seconds.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Examined,
    Guarantee,
    LinkRequest,
    LostPartitionsError,
    Message,
    Outgoing,
    RebalanceListener,
    StreamUrl,
)
from services.stream.transports.sqlite_group import Membership
from services.stream.transports.sqlite_log import Log, Topic, translate_errors

_LEASE_SECONDS = 10.0
_SHORTEST_NAP, _LONGEST_NAP = 0.0005, 0.016
_FORGET_SECONDS = 5.0
_PAGE = 4096
_OPTIONS = frozenset({"partitions", "retention", "lease"})


class SqliteLink:
    """A consumer of one topic, and a producer of answers and dead letters in the same file."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, request: LinkRequest, clock: Clock | None = None) -> None:
        self._request = request
        self._clock = clock or SystemClock()
        self._listener: RebalanceListener | None = None
        self._positions: dict[int, int] = {}
        self._ahead: dict[int, list[Message]] = {}
        self._turn = 0

    def __enter__(self) -> Self:
        request = self._request
        lease = request.source.number("lease", _LEASE_SECONDS)
        self._log = Log(_path(request.source))
        try:
            self._topic = _topic(self._log, request.source)
            self._answers = request.answers and _topic(self._log, request.answers)
            self._dead = request.dead and _topic(self._log, request.dead)
        except BaseException:
            self._log.close()
            raise
        self._group = Membership(
            self._log, self._topic, request.group, request.start, lease, self._clock
        )
        places = (request.source, request.answers, request.dead)
        self._retention = [_Retention(self._log, place) for place in places if place]
        return self

    def __exit__(self, *_exc_info: object) -> None:
        try:
            self._group.leave()
        except (MlctlError, sqlite3.Error):
            # The lease runs out by itself.
            pass
        finally:
            self._log.close()

    def listen(self, listener: RebalanceListener) -> None:
        self._listener = listener

    @property
    def takeover_s(self) -> float:
        """The option `lease`."""
        return self._request.source.number("lease", _LEASE_SECONDS)

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        deadline = time.monotonic() + wait_s
        nap = _SHORTEST_NAP
        while True:
            if self._group.due:
                self._beat()
                for retention in self._retention:
                    retention.keep(self._clock)
            found = self._read(limit) if limit else []
            left = deadline - time.monotonic()
            if found or not limit or left <= 0:
                return found
            time.sleep(min(nap, left))
            nap = min(2 * nap, _LONGEST_NAP)

    def commit(self, batch: Commit) -> None:
        last = {int(each.partition): int(each.offset) for each in batch.done}
        try:
            with self._log.transaction():
                self._group.advance(last)
                if self._answers:
                    self._log.append(self._answers, batch.answers)
                if self._dead:
                    self._log.append(self._dead, batch.dead)
        except LostPartitionsError:
            self._rewind()
            raise

    def acknowledge(self, done: Sequence[Message]) -> None:
        self.commit(Commit(done))

    def lag(self) -> Mapping[str, int]:
        with translate_errors():
            return {
                str(part): self._log.end(self._topic, part) - committed
                for part, committed in self._group.committed().items()
            }

    def group_lag(self) -> int:
        with translate_errors():
            committed = self._group.committed_by_all()
            return sum(
                self._log.end(self._topic, part) - committed.get(part, self._begin(part))
                for part in range(self._topic.partitions)
            )

    def _begin(self, part: int) -> int:
        """Return where a new group starts in a partition that no member took yet."""
        latest = self._request.start == "latest"
        return (self._log.end if latest else self._log.begin)(self._topic, part)

    def _beat(self) -> None:
        changes = self._group.beat()
        self._drop(changes.lost)
        if changes.lost and self._listener:
            self._listener.lost([str(part) for part in changes.lost])
        self._positions |= changes.gained
        if changes.wanted_elsewhere:
            if self._listener:
                self._listener.revoked([str(part) for part in changes.wanted_elsewhere])
            self._group.release(changes.wanted_elsewhere)
            self._drop(changes.wanted_elsewhere)

    def _rewind(self) -> None:
        """Go back to the last commit; what is not ours any more is found at the next beat."""
        with translate_errors():
            self._positions = self._group.committed()
        self._ahead = {}

    def _drop(self, parts: Collection[int]) -> None:
        for part in parts:
            self._positions.pop(part, None)
            self._ahead.pop(part, None)

    def _read(self, limit: int) -> list[Message]:
        """At most `limit` messages; the partitions take turns at being the first."""
        found: list[Message] = []
        parts = [*self._positions]
        self._turn += 1
        for index in range(len(parts)):
            part = parts[(self._turn + index) % len(parts)]
            ahead = self._ahead.pop(part, None)
            if ahead is None:
                room = limit - len(found)
                ahead = self._log.read(self._topic, part, self._positions[part], room)
            taken = ahead[: limit - len(found)]
            if len(taken) < len(ahead):
                self._ahead[part] = ahead[len(taken) :]
            if taken:
                self._positions[part] = int(taken[-1].offset)
                found += taken
            if len(found) == limit:
                break
        return found


class SqliteProducer:
    """Appends messages to one topic."""

    def __init__(self, place: StreamUrl) -> None:
        self._place = place

    def __enter__(self) -> Self:
        self._log = Log(_path(self._place))
        try:
            self._topic = _topic(self._log, self._place)
        except BaseException:
            self._log.close()
            raise
        self._retention = _Retention(self._log, self._place)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._log.close()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        with self._log.transaction():
            self._log.append(self._topic, messages)
        self._retention.keep(SystemClock())


class SqliteTransport:
    """Streams in files of this machine."""

    def open_link(self, request: LinkRequest) -> SqliteLink:
        return SqliteLink(request)

    def open_consumer(self, request: LinkRequest) -> SqliteLink:
        return SqliteLink(request)

    def open_producer(self, place: StreamUrl) -> SqliteProducer:
        return SqliteProducer(place)

    def browse(self, place: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        log = Log(_path(place), create=False)
        try:
            topic = log.topic(place.topic, create=False)
            parts = range(topic.partitions)
            if last is None:
                for part in parts:
                    yield from _pages(log, topic, part, log.begin(topic, part))
                return
            ends = [
                each
                for part in parts
                for each in _pages(log, topic, part, log.end(topic, part) - last)
            ]
            ends.sort(key=lambda message: message.time_ms)
            yield from ends[max(0, len(ends) - last) :]
        finally:
            log.close()

    def follow(self, place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
        log = Log(_path(place), create=False)
        try:
            topic = log.topic(place.topic, create=False)
            positions = {part: log.end(topic, part) for part in range(topic.partitions)}
            quiet_since = time.monotonic()
            while True:
                found = [
                    each
                    for part, after in positions.items()
                    for each in log.read(topic, part, after, _PAGE)
                ]
                if found:
                    positions |= {int(each.partition): int(each.offset) for each in found}
                    yield from found
                elif time.monotonic() - quiet_since < wait_s:
                    time.sleep(min(wait_s, _LONGEST_NAP))
                    continue
                else:
                    yield None
                quiet_since = time.monotonic()
        finally:
            log.close()

    def examine(self, place: StreamUrl, group: str) -> Examined:
        log = Log(_path(place), create=False)
        try:
            with translate_errors():
                return _examined(log, log.topic(place.topic, create=False), group)
        finally:
            log.close()

    def forget(self, place: StreamUrl, group: str) -> None:
        log = Log(_path(place), create=False)
        try:
            topic = log.topic(place.topic, create=False)
            lease = place.number("lease", _LEASE_SECONDS)
            Membership(log, topic, group, "earliest", lease, SystemClock()).forget()
        finally:
            log.close()


class _Retention:
    """Removes what is older than a place's option `retention` says, now and then."""

    def __init__(self, log: Log, place: StreamUrl) -> None:
        self._log = log
        self._topic = log.topic(place.topic)
        self._seconds = place.number("retention", 0.0)
        self._next = float("-inf")

    def keep(self, clock: Clock) -> None:
        now = clock.monotonic()
        if self._seconds and now >= self._next:
            self._next = now + _FORGET_SECONDS
            self._log.forget(self._topic, int((time.time() - self._seconds) * 1000))


def _examined(log: Log, topic: Topic, group: str) -> Examined:
    ends = {part: log.end(topic, part) for part in range(topic.partitions)}
    query = "SELECT part, committed FROM positions WHERE topic = ? AND team = ?"
    committed = dict(log.db.execute(query, (topic.id, group)))
    query = "SELECT count(*) FROM members WHERE topic = ? AND team = ?"
    (members,) = log.db.execute(query, (topic.id, group)).fetchone()
    remarks = [f"{topic.partitions} partitions, {members} members of group {group!r}"]
    if not committed:
        remarks.append(f"group {group!r} has not begun")
    query = "SELECT team, part, committed FROM positions WHERE topic = ? AND team <> ?"
    behind: Counter[str] = Counter()
    for other, part, offset in log.db.execute(query, (topic.id, group)):
        behind[other] += ends[part] - offset
    remarks += [
        f"retention waits for group {other!r} ({count:,} behind)"
        for other, count in sorted(behind.items())
        if count
    ]
    return Examined(
        Guarantee.EXACTLY_ONCE,
        f"SQLite {sqlite3.sqlite_version}",
        sum(ends[part] - log.begin(topic, part) for part in ends),
        {str(part): ends[part] - committed[part] for part in ends} if committed else None,
        tuple(remarks),
    )


def _pages(log: Log, topic: Topic, part: int, after: int) -> Iterator[Message]:
    """What is there now after offset `after`."""
    end = log.end(topic, part)
    while after < end:
        page = log.read(topic, part, after, _PAGE)
        if not page:
            return
        after = int(page[-1].offset)
        yield from islice(page, len(page))


def _path(place: StreamUrl) -> Path:
    if not place.address:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "the place names no file",
            "Write it as sqlite://events.db#orders.",
        )
    if unknown := place.options.keys() - _OPTIONS:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a log has no option {min(unknown)!r}",
            f"Known are: {', '.join(sorted(_OPTIONS))}.",
        )
    return Path(place.address)


def _topic(log: Log, place: StreamUrl) -> Topic:
    partitions = place.number("partitions", 0.0)
    return log.topic(place.topic, int(partitions) or None)


transport = SqliteTransport()
