"""A link between two brokers: answers are durable in one before the other forgets the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Consumer,
    Ending,
    Guarantee,
    LinkRequest,
    Message,
    Pausable,
    Producer,
    RebalanceListener,
    Rebalancing,
    StreamConnection,
    StreamUrl,
    TakingOver,
)
from services.stream.transports import transport_of

# Transports that cannot commit answers and position in one step.
LINES = frozenset({"file", "-"})


class Bridge:
    """Publishes, then acknowledges: what was killed in between is published once more."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(
        self, consumer: Consumer, answers: Producer | None, dead: Producer | None = None
    ) -> None:
        self._consumer = consumer
        self._answers = answers
        self._dead = dead
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for part in (self._answers, self._dead, self._consumer):
                if part is not None:
                    stack.enter_context(part)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def ended(self) -> bool:
        """As the consumer's source."""
        return isinstance(self._consumer, Ending) and self._consumer.ended

    @property
    def takeover_s(self) -> float:
        """As the consumer's broker."""
        return self._consumer.takeover_s if isinstance(self._consumer, TakingOver) else 0.0

    def listen(self, listener: RebalanceListener) -> None:
        if isinstance(self._consumer, Rebalancing):
            self._consumer.listen(listener)

    def pause(self) -> None:
        if isinstance(self._consumer, Pausable):
            self._consumer.pause()

    def resume(self) -> None:
        if isinstance(self._consumer, Pausable):
            self._consumer.resume()

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        return self._consumer.poll(limit, wait_s)

    def commit(self, batch: Commit) -> None:
        if self._answers is not None and batch.answers:
            self._answers.publish(batch.answers)
        if self._dead is not None and batch.dead:
            self._dead.publish(batch.dead)
        self._consumer.acknowledge(batch.done)

    def lag(self) -> Mapping[str, int]:
        return self._consumer.lag()

    def group_lag(self) -> int:
        return self._consumer.group_lag()


def connect(request: LinkRequest) -> StreamConnection:
    """The link of `request`, whose places may be at different brokers.

    INVALID_INPUT if `exactly_once` is asked of brokers that are not one, or if the source is also
    where messages go: a run would never come to an end.
    """
    transport = transport_of(request.source)
    if request.source.scheme != "-" and request.source in (request.answers, request.dead):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{request.source.shown()} cannot be both --in and where messages go",
            "Give answers and dead letters places of their own.",
        )
    places = [place for place in (request.answers, request.dead) if place is not None]
    if request.source.scheme not in LINES and all(
        same_broker(request.source, place) for place in places
    ):
        return transport.open_link(request)
    if request.exactly_once:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "exactly once needs all places at one broker; files and pipes are none",
            "Leave --exactly-once out: readers drop a second answer by its mlctl-source header.",
        )
    half = replace(request, answers=None, dead=None)
    return Bridge(
        transport.open_consumer(half), _producer(request.answers), _producer(_whole(request.dead))
    )


def same_broker(one: StreamUrl, other: StreamUrl) -> bool:
    """Whether a commit at both places can be one step."""
    return one.scheme == other.scheme and one.address == other.address


def _whole(dead: StreamUrl | None) -> StreamUrl | None:
    """A place where dead letters keep their headers, which lines of text do not by themselves."""
    if dead is None or dead.scheme not in LINES:
        return dead
    return replace(dead, options={**dead.options, "headers": "yes"})


def _producer(place: StreamUrl | None) -> Producer | None:
    return None if place is None else transport_of(place).open_producer(place)
