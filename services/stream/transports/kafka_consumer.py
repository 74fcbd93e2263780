"""A member of a Kafka consumer group: its messages, partitions and positions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage

from mlctl.core.errors import ErrorCode
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    LostPartitionsError,
    Message,
    StreamConnection,
)
from mlctl.services.stream.transports.kafka_client import (
    TIMEOUT_S,
    ClientHealth,
    make_client,
    partitions_of,
    properties,
    translate_errors,
    translated,
)

# Commit errors that mean the partitions were reassigned, or are about to be.
LOST = frozenset(
    {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_ASSIGNMENT_LOST"}
)
# Timeout of a request about positions, in seconds: members should poll meanwhile.
_POSITION_S = 5.0
_DEFAULTS = {
    # After this time a killed member's partitions move to others.
    "session.timeout.ms": 15_000,
    "partition.assignment.strategy": "range",
    # By default a full prefetch queue stops fetching for a second.
    "fetch.queue.backoff.ms": 20,
}


@cache
def _name(partition: int | None) -> str:
    assert partition is not None  # only an error has none
    return str(partition)


def converted(raw: Iterable[RawMessage]) -> list[Message]:
    """Return the messages; errors are left out."""
    # The constructor of a named tuple is a call in Python: a fifth of the time.
    make_tuple = tuple.__new__
    return [
        make_tuple(
            Message,
            (
                _name(m.partition()),
                m.offset(),
                m.value(),
                m.key(),
                tuple(m.headers() or ()),
                m.timestamp()[1],
            ),
        )
        for m in raw
        if m.error() is None
    ]


class GroupConsumer(StreamConnection):
    """A member of a group, whose commits are of positions alone; for one thread.

    A group begins at the earliest message. With `start` "latest" it begins when its first
    member joins: that position is committed at once, or a rebalance before the first commit
    would skip messages that arrived meanwhile.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, request: ConnectionRequest) -> None:
        self._url = request.source
        self._settings = {
            **_DEFAULTS,
            **properties(request.source),
            "group.id": request.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        self._latest = request.start == "latest"
        self._health = ClientHealth(request.source)
        # Messages that the client returned and poll() did not.
        self._buffered: list[Message] = []
        self._owned: set[str] = set()
        self._rewind_pending = False
        # By partition: the position after the last message, and the end that follows it.
        self._ends: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        self._consumer: Consumer = make_client("Consumer", self._settings, self._health)
        try:
            partitions_of(self._consumer, self._url, self._health)
            self._consumer.subscribe(
                [self._url.topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.listener = None  # Uncommitted messages are delivered again.
        self._leave()

    def _leave(self) -> None:
        """Leave the group: give the partitions back first, then close the client.

        Close() may wait for ever for partitions that it takes back itself.
        """
        self._consumer.unsubscribe()
        deadline = time.monotonic() + _POSITION_S
        while self._owned and time.monotonic() < deadline:
            self._consumer.poll(0.05)  # It calls `_on_revoke`.
        self._consumer.close()

    @property
    def takeover_s(self) -> float:
        """The property session.timeout.ms."""
        return float(self._settings["session.timeout.ms"]) / 1e3

    # ---- messages

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        with translate_errors(self._url):
            if self._rewind_pending:
                self._rewind()
            room = limit - len(self._buffered)
            wait_s = 0 if self._buffered else wait_s
            # Without room a single message keeps the membership. Partitions are never paused: the
            # client fetches resumed ones only after up to a second.
            found = self._fetch(room, wait_s) if room > 0 else self._accepted(self._poll_one(0))
            # A rebalance meanwhile may have dropped messages; all if a commit was rejected.
            self._buffered = [] if self._rewind_pending else [*self._buffered, *found]
        taken, self._buffered = self._buffered[:limit], self._buffered[limit:]
        if not taken:
            self._health.check()
        return taken

    def _fetch(self, limit: int, wait_s: float) -> list[Message]:
        # With a timeout consume() would wait for all of `limit`.
        found = self._accepted(self._consumer.consume(limit, 0))
        deadline = time.monotonic() + wait_s
        while not found and (left := deadline - time.monotonic()) > 0:
            first = self._poll_one(left)
            if not first:
                break
            more = self._consumer.consume(limit - 1, 0) if limit > 1 else []
            found = self._accepted([*first, *more])  # Empty for the end of a partition.
        return found

    def _poll_one(self, wait_s: float) -> list[RawMessage]:
        message = self._consumer.poll(wait_s)
        return [] if message is None else [message]

    def _accepted(self, raw: list[RawMessage]) -> list[Message]:
        messages = converted(raw)
        if len(messages) < len(raw):
            for each in raw:
                if (error := each.error()) is not None:
                    self._on_message_error(each, error)
        return messages

    def _on_message_error(self, raw: RawMessage, error: Any) -> None:
        if error.name() == "_PARTITION_EOF":
            partition, end = raw.partition(), raw.offset()
            assert partition is not None
            assert end is not None
            (at,) = self._consumer.position([self._topic_partition(partition)])
            self._ends[_name(partition)] = (at.offset, end)
        elif error.name() != "_MAX_POLL_EXCEEDED":  # A rebalance follows.
            problem = translated(error, self._url.redacted())
            if problem.code is not ErrorCode.BROKER_UNAVAILABLE:
                raise problem

    # ---- positions

    def commit(self, batch: Commit) -> None:
        positions = self.positions_after(batch.done)
        if not positions:
            return
        try:
            self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() in LOST:
                raise self.lost() from error
            raise translated(error.args[0], self._url.redacted()) from error

    def positions_after(self, done: Sequence[Message]) -> list[TopicPartition]:
        """Return the positions after `done`; LostPartitionsError if others own a partition."""
        last = {message.partition: message.offset for message in done}
        if self._rewind_pending or not last.keys() <= self._owned:
            raise self.lost()
        return [self._topic_partition(int(name), int(at) + 1) for name, at in last.items()]

    def lost(self) -> LostPartitionsError:
        """Discard buffered messages, and let the next poll begin after the last commit."""
        self._rewind_pending = True
        return LostPartitionsError("the partitions belong to another consumer")

    def lag(self) -> Mapping[str, int]:
        with translate_errors(self._url):
            self._commit_ends()
            owned = self.lags(sorted(map(int, self._owned)), cached=True)
        return {_name(partition): lag for partition, lag in owned.items()}

    def group_lag(self) -> int:
        numbers = partitions_of(self._consumer, self._url, self._health)
        with translate_errors(self._url):
            self._commit_ends()
            return sum(self.lags(numbers, cached=False).values())

    def lags(self, partitions: Iterable[int], *, cached: bool) -> Mapping[int, int]:
        """Return the messages after the group's position; `cached` asks no broker for ends."""
        found = {}
        for at in self._committed(partitions):
            low, high = self._consumer.get_watermark_offsets(at, cached=cached, timeout=_POSITION_S)
            if high < 0:  # Nothing was fetched yet.
                low, high = self._consumer.get_watermark_offsets(at, timeout=_POSITION_S)
            found[at.partition] = max(high - max(at.offset, low), 0)
        return found

    def _committed(self, partitions: Iterable[int]) -> list[TopicPartition]:
        """Return the group's positions; negative where there is none."""
        asked = [self._topic_partition(partition) for partition in partitions]
        found = self._consumer.committed(asked, timeout=_POSITION_S) if asked else []
        for at in found:
            if at.error is not None:
                raise translated(at.error, self._url.redacted())
        return found

    def _commit_ends(self) -> None:
        """Commit the offsets of transaction markers and compacted messages at partition ends.

        No message follows them, so no commit of messages covers them. Without this the group's
        lag would never be 0.
        """
        ends = {int(name): (at, end) for name, (at, end) in self._ends.items() if at < end}
        passed = []
        for committed in self._committed(ends):
            at, end = ends[committed.partition]
            if at <= committed.offset and max(committed.offset, 0) < end:
                passed.append(self._topic_partition(committed.partition, end))
        if not passed or self._rewind_pending:
            return
        try:
            self._consumer.commit(offsets=passed, asynchronous=False)
        except KafkaException as error:
            # A rebalance has begun: the next owner of the partitions finds their ends itself.
            if error.args[0].name() not in LOST:
                raise

    def _rewind(self) -> None:
        for at in self._committed(map(int, self._owned)):
            if at.offset < 0:
                at.offset = OFFSET_BEGINNING
            try:
                self._consumer.seek(at)
            except KafkaException as error:
                # The client has not begun to fetch, and will begin after the last commit.
                if error.args[0].name() != "_STATE":
                    raise
        self._buffered.clear()
        self._rewind_pending = False

    # ---- membership

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._latest:
            self._begin_at_end(consumer, partitions)
        for partition in partitions:
            self._owned.add(_name(partition.partition))

    def _begin_at_end(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The client fetches nothing before this returns.
        new = [at for at in consumer.committed(partitions, timeout=TIMEOUT_S) if at.offset < 0]
        for at in new:
            _low, at.offset = consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
        if new:
            consumer.commit(offsets=new, asynchronous=False)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = [_name(partition.partition) for partition in partitions]
        try:
            if self.listener is not None:
                self.listener.revoked(names)
        finally:
            self._drop(names)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = [_name(partition.partition) for partition in partitions]
        self._drop(names)
        if self.listener is not None:
            self.listener.lost(names)

    def _drop(self, names: list[str]) -> None:
        self._owned.difference_update(names)
        self._buffered = [each for each in self._buffered if each.partition in self._owned]
        self._ends = {name: end for name, end in self._ends.items() if name in self._owned}

    def _topic_partition(self, partition: int, offset: int | None = None) -> TopicPartition:
        at = OFFSET_INVALID if offset is None else offset
        return TopicPartition(self._url.topic, partition, at)
