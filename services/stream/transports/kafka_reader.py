"""One member of a consumer group: what came, whose partitions they are, where it stands."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from bundle.errors import ErrorCode
from services.stream.base import (
    Headers,
    LinkRequest,
    LostPartitionsError,
    Message,
    RebalanceListener,
)
from services.stream.transports.kafka_client import (
    PATIENCE_S,
    ClientHealth,
    load_driver,
    make,
    partitions_of,
    properties,
    translate_errors,
    translated,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka import Message as Raw

# The broker gave the partitions to others, or is about to and takes no commit any more.
LOST = frozenset(
    {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_ASSIGNMENT_LOST"}
)
# Of lag(): a look at a partition that is not fetched, in seconds.
_LOOK_S = 2.0
_DEFAULTS = {
    # A killed member's partitions move to others after this time.
    "session.timeout.ms": 15_000,
    "partition.assignment.strategy": "range",
    # By default a full prefetch queue stops fetching for a second.
    "fetch.queue.backoff.ms": 20,
}


def _headers(found: Any) -> Headers:
    return tuple((name, value or b"") for name, value in found)


def converted(raw: Iterable[Raw], names: Mapping[int, str]) -> list[Message]:
    """The messages of them; a tombstone is an empty one. What tells of an error is left out."""
    # The constructor of a named tuple is a call in Python: a fifth of the time.
    make_tuple = tuple.__new__
    return [
        make_tuple(
            Message,
            (
                names[m.partition()],  # type: ignore[index]  # only an error has none
                m.offset(),
                m.value() or b"",
                m.key(),
                _headers(headers) if (headers := m.headers()) else (),
                m.timestamp()[1],
            ),
        )
        for m in raw
        if m.error() is None
    ]


class PartitionNames(dict[int, str]):
    """The text of a partition's number, made once."""

    def __missing__(self, number: int) -> str:
        self[number] = text = str(number)
        return text


class GroupReader:
    """A Consumer, Rebalancing and Pausable; for one thread.

    A group begins at the earliest message, and with `start` "latest" at the first member's
    arrival: that position is committed at once, or a rebalance before the first commit would
    pass over what came meanwhile.
    """

    def __init__(self, request: LinkRequest) -> None:
        self._driver = load_driver()
        self._place = request.source
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
        self._health = ClientHealth()
        self._names = PartitionNames()
        self._listener: RebalanceListener | None = None
        self._held: list[Message] = []
        self._owned: set[str] = set()
        self._paused = self._to_pause = self._behind = False
        self._committed: dict[str, int] = {}
        # By partition: the position after the last message, and the end that follows it.
        self._ends: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        self._consumer: Consumer = make("Consumer", self._settings, self._health)
        try:
            partitions_of(self._consumer, self._place, self._health)
            self._consumer.subscribe(
                [self._place.topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener = None  # What is not committed by now comes again.
        self._consumer.close()

    def listen(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def metadata(self) -> Any:
        """Of this member, for a transaction: its generation tells whether it is still one."""
        return self._consumer.consumer_group_metadata()

    @property
    def takeover_s(self) -> float:
        """The property session.timeout.ms."""
        return float(self._settings["session.timeout.ms"]) / 1e3

    # ---- messages

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        with translate_errors(self._place.shown()):
            if self._behind:
                self._rewind()
            if self._to_pause:
                self._consumer.pause(self._assignment())
                self._to_pause = False
            room = limit - len(self._held)
            wait_s = 0 if self._held else wait_s
            more = self._more(room, wait_s) if room > 0 else self._taken(self._waited(0))
            # A rebalance in between may have dropped some, or all if a commit was refused.
            self._held = [] if self._behind else [*self._held, *more]
        taken, self._held = self._held[:limit], self._held[limit:]
        if not taken:
            self._health.check()
        return taken

    def _more(self, limit: int, wait_s: float) -> list[Message]:
        # With a timeout consume() would wait for all of `limit`.
        taken = self._taken(self._consumer.consume(limit, 0))
        deadline = time.monotonic() + wait_s
        while not taken and (left := deadline - time.monotonic()) > 0:
            first = self._waited(left)
            if not first:
                break
            more = self._consumer.consume(limit - 1, 0) if limit > 1 else []
            taken = self._taken([*first, *more])  # None if it was only the end of a partition.
        return taken

    def _waited(self, wait_s: float) -> list[Raw]:
        message = self._consumer.poll(wait_s)
        return [] if message is None else [message]

    def _taken(self, raw: list[Raw]) -> list[Message]:
        messages = converted(raw, self._names)
        if len(messages) < len(raw):
            for found in raw:
                if (error := found.error()) is not None:
                    self._met(found, error)
        return messages

    def _met(self, found: Raw, error: Any) -> None:
        if error.name() == "_PARTITION_EOF":
            partition, end = found.partition(), found.offset()
            assert partition is not None
            assert end is not None
            (at,) = self._consumer.position([self._topic_partition(partition)])
            self._ends[self._names[partition]] = (at.offset, end)
        elif error.name() != "_MAX_POLL_EXCEEDED":  # A rebalance follows.
            problem = translated(error, self._place.shown())
            if problem.code is not ErrorCode.BROKER_UNAVAILABLE:
                raise problem

    # ---- positions

    def after(self, done: Sequence[Message]) -> list[TopicPartition]:
        """The positions that follow `done`; LostPartitionsError if they are not ours."""
        last = {message.partition: message.offset for message in done}
        if self._behind or not last.keys() <= self._owned:
            raise self.lost()
        return [self._topic_partition(int(name), int(at) + 1) for name, at in last.items()]

    def moved(self, positions: Iterable[TopicPartition]) -> None:
        """These are committed now."""
        self._committed.update((self._names[at.partition], at.offset) for at in positions)

    def forget_committed(self) -> None:
        """Positions are the broker's to tell: a transaction of a while ago has ended."""
        self._committed.clear()

    def lost(self) -> LostPartitionsError:
        """Forget what was polled: the next poll starts behind the last commit."""
        self._behind = True
        return LostPartitionsError("the partitions belong to another consumer")

    def acknowledge(self, done: Sequence[Message]) -> None:
        positions = self.after(done)
        if not positions:
            return
        try:
            self._consumer.commit(offsets=positions, asynchronous=False)
        except self._driver.KafkaException as error:
            if error.args[0].name() in LOST:
                raise self.lost() from error
            raise translated(error.args[0], self._place.shown()) from error
        self.moved(positions)

    def lag(self) -> Mapping[str, int]:
        with translate_errors(self._place.shown()):
            if unknown := [name for name in self._owned if name not in self._committed]:
                asked = [self._topic_partition(int(name)) for name in unknown]
                self.moved(self._consumer.committed(asked, timeout=_LOOK_S))
            self._commit_ends()
            return {name: self._behind_by(name) for name in sorted(self._owned, key=int)}

    def group_lag(self) -> int:
        self.lag()  # It commits the ends of our own partitions.
        numbers = partitions_of(self._consumer, self._place, self._health)
        with translate_errors(self._place.shown()):
            asked = [self._topic_partition(number) for number in numbers]
            return sum(map(self._left, self._consumer.committed(asked, timeout=PATIENCE_S)))

    def _left(self, committed: TopicPartition) -> int:
        """Return how many offsets of a partition follow the group's commit."""
        if committed.error is not None:
            raise translated(committed.error, self._place.shown())
        low, high = self._consumer.get_watermark_offsets(committed, timeout=_LOOK_S)
        return int(max(high - max(committed.offset, low), 0))

    def _commit_ends(self) -> None:
        """Commit the offsets of transaction marks and compacted messages at a partition's end.

        No message follows them, so no commit of messages covers them. Without this the group's
        lag would never be 0 for members that do not hold the partition.
        """
        ends = [
            self._topic_partition(int(name), end)
            for name, (at, end) in self._ends.items()
            if name in self._owned
            and at <= self._committed[name]
            and max(self._committed[name], 0) < end
        ]
        if not ends or self._behind:
            return
        try:
            self._consumer.commit(offsets=ends, asynchronous=False)
        except self._driver.KafkaException as error:
            # A rebalance is under way: the next owner of the partitions finds their ends itself.
            if error.args[0].name() not in LOST:
                raise
        else:
            self.moved(ends)

    def _behind_by(self, name: str) -> int:
        partition = self._topic_partition(int(name))
        look = self._consumer.get_watermark_offsets
        # Of a partition that is paused the client knows no new end.
        low, high = look(partition, cached=True) if not self._paused else (0, -1)
        if high < 0:
            low, high = look(partition, timeout=_LOOK_S)
        position = max(self._committed[name], low, 0)
        at, end = self._ends.get(name, (-1, -1))
        # Marks of transactions have offsets too, and no message ever follows them.
        return max(high - (max(end, position) if at <= position else position), 0)

    def _rewind(self) -> None:
        for at in self._consumer.committed(self._assignment(), timeout=PATIENCE_S):
            if at.offset < 0:
                at.offset = self._driver.OFFSET_BEGINNING
            try:
                self._consumer.seek(at)
            except self._driver.KafkaException as error:
                # It has not begun to fetch, and will do so behind the last commit.
                if error.args[0].name() != "_STATE":
                    raise
        self._held.clear()
        self._behind = False

    # ---- membership

    def pause(self) -> None:
        self._paused = self._to_pause = True

    def resume(self) -> None:
        self._paused = self._to_pause = False
        with translate_errors(self._place.shown()):
            self._consumer.resume(self._assignment())

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._latest:
            self._begin_latest(consumer, partitions)
        for partition in partitions:
            self._forget(self._names[partition.partition])
            self._owned.add(self._names[partition.partition])
        self._to_pause = self._paused

    def _begin_latest(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Nothing is fetched before this returns.
        new = [at for at in consumer.committed(partitions, timeout=PATIENCE_S) if at.offset < 0]
        for at in new:
            _low, at.offset = consumer.get_watermark_offsets(at, timeout=PATIENCE_S)
        if new:
            consumer.commit(offsets=new, asynchronous=False)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = [self._names[partition.partition] for partition in partitions]
        try:
            if self._listener is not None:
                self._listener.revoked(names)
        finally:
            self._drop(names)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        names = [self._names[partition.partition] for partition in partitions]
        self._drop(names)
        if self._listener is not None:
            self._listener.lost(names)

    def _drop(self, names: list[str]) -> None:
        self._owned.difference_update(names)
        self._held = [message for message in self._held if message.partition in self._owned]
        for name in names:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._committed.pop(name, None)
        self._ends.pop(name, None)

    def _assignment(self) -> list[TopicPartition]:
        return [self._topic_partition(int(name)) for name in self._owned]

    def _topic_partition(self, partition: int, offset: int | None = None) -> TopicPartition:
        made: TopicPartition
        if offset is None:
            made = self._driver.TopicPartition(self._place.topic, partition)
        else:
            made = self._driver.TopicPartition(self._place.topic, partition, offset)
        return made
