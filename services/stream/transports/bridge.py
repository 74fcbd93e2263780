"""A connection between two brokers: answers are durable in one before the other is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    Message,
    Producer,
    RebalanceListener,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.transports import transport_of

# Transports that cannot commit answers and position in one step.
_LINES = frozenset({"file", "-"})


class Bridge(StreamConnection):
    """Publishes, then acknowledges: a kill in between causes a second answer."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(
        self, source: StreamConnection, answers: Producer | None, dead: Producer | None = None
    ) -> None:
        self._source = source
        self._answers = answers
        self._dead = dead
        # What is durable, and whose position is not committed yet.
        self._published: Commit | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for part in (self._answers, self._dead, self._source):
                if part is not None:
                    stack.enter_context(part)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        return self._source.poll(limit, wait_s)

    def commit(self, batch: Commit) -> None:
        """Publish, unless a call before has done it, then commit the position."""
        if batch is not self._published:
            if self._answers is not None and batch.answers:
                self._answers.publish(batch.answers)
            if self._dead is not None and batch.dead:
                self._dead.publish(batch.dead)
            self._published = batch
        self._source.commit(Commit(batch.done))

    def lag(self) -> Mapping[str, int]:
        return self._source.lag()

    def group_lag(self) -> int:
        return self._source.group_lag()

    def listen(self, listener: RebalanceListener) -> None:
        self._source.listen(listener)

    @property
    def ended(self) -> bool:
        return self._source.ended

    @property
    def takeover_s(self) -> float:
        return self._source.takeover_s


def connect(request: ConnectionRequest) -> StreamConnection:
    """Return the connection of `request`, whose streams may be at different brokers.

    INVALID_INPUT for `exactly_once` across two brokers; if the source is also a destination: the
    run would never end; or if dead letters could not be read again.
    """
    transport = transport_of(request.source)
    urls = [url for url in (request.answers, request.dead) if url is not None]
    if request.source.scheme != "-" and request.source in urls:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{request.source.redacted()} cannot be both --in and a destination",
            "Use another stream for answers and dead letters.",
        )
    if request.dead is not None and transport_of(request.dead).answers_only:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"dead letters cannot go to {request.dead.redacted()}: nothing can read them again",
            "Name a stream or a file: --dead dead.jsonl.",
        )
    if request.source.scheme not in _LINES and all(
        same_broker(request.source, url) for url in urls
    ):
        return transport.open_connection(request)
    if request.exactly_once:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "exactly once needs all streams at one broker; files and pipes cannot provide it",
            "Remove --exactly-once: readers can drop a second answer by its mlctl-source header.",
        )
    return bridged(transport.open_connection(replace(request, answers=None, dead=None)), request)


def bridged(source: StreamConnection, request: ConnectionRequest) -> StreamConnection:
    """Return `source` with producers of the answers and dead letters of `request`."""
    return Bridge(source, _producer(request.answers), _producer(_with_headers(request.dead)))


def same_broker(one: StreamUrl, other: StreamUrl) -> bool:
    """Return whether one commit can cover both streams."""
    same_kind = transport_of(one) is transport_of(other) and one.scheme == other.scheme
    return same_kind and one.address == other.address


def _with_headers(dead: StreamUrl | None) -> StreamUrl | None:
    """Make lines keep the headers of dead letters, which say what is wrong."""
    if dead is None or dead.scheme not in _LINES:
        return dead
    return replace(dead, options={**dead.options, "headers": "yes"})


def _producer(url: StreamUrl | None) -> Producer | None:
    return None if url is None else transport_of(url).open_producer(url)
