"""NATS JetStream: at least once; an answer that comes twice is dropped while its stream remembers.

A place is `nats://HOST:PORT#SUBJECT`. A group is a durable pull consumer of the stream that takes
the subject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Self

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Consumer,
    Examined,
    Guarantee,
    Link,
    LinkRequest,
    Message,
    Outgoing,
    Place,
    Producer,
)
from services.stream.transports.nats_client import Session
from services.stream.transports.nats_entries import read_message
from services.stream.transports.nats_link import NatsLink
from services.stream.transports.nats_publish import Publisher
from services.stream.transports.nats_pull import Pull
from services.stream.transports.nats_streams import reader_of, stream_of

_PAGE = 1000
_GONE_SECONDS = 10.0


class NatsProducer:
    """Publishes to one subject."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._session = Session(place)
        self._publisher = Publisher(self._session)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        batches = [(self._place, messages)]
        self._session.run(lambda client: self._publisher.publish(client, batches))

    def __enter__(self) -> Self:
        try:
            self._session.run(
                lambda client: stream_of(self._session.jetstream(client), self._place)
            )
        except MlctlError:
            self._session.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._session.close()


class Reading:
    """A look at a subject without taking part."""

    def __init__(self, place: Place, last: int | None) -> None:
        self._session = Session(place)
        try:
            self.stream, name, self.there = self._session.run(
                lambda client: reader_of(self._session.jetstream(client), place, last)
            )
            self._pull = Pull(self._session.api, self.stream, name)
            self._session.run(self._pull.listen)
        except MlctlError:
            self._session.close()
            raise

    def next(self, wait_s: float) -> list[Message]:
        """The messages that follow, none if none came in `wait_s` seconds."""
        self._session.run(lambda client: self._pull.gather(client, _PAGE, wait_s))
        arrived = self._pull.arrived
        found = [read_message(self.stream, message) for message in arrived]
        arrived.clear()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._session.close()


class NatsTransport:
    """The transport of `nats://`."""

    def open_link(self, request: LinkRequest) -> Link:
        for place in (request.answers, request.dead):
            if place is not None and place.address != request.source.address:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{place.shown()} is not at the address of the source",
                    "One connection commits to one server.",
                )
        return _link(request)

    def open_consumer(self, request: LinkRequest) -> Consumer:
        return _link(request)

    def open_producer(self, place: Place) -> Producer:
        return NatsProducer(place)

    def browse(self, place: Place, *, last: int | None = None) -> Iterator[Message]:
        """The messages that are there now, oldest first: all, or only the `last` ones."""
        with Reading(place, last) as reading:
            left = reading.there
            kept: deque[Message] = deque(maxlen=last)
            while left > 0:
                page = reading.next(_GONE_SECONDS)[:left]
                if not page:
                    break  # removed by a limit of the stream meanwhile
                left -= len(page)
                if last is None:
                    yield from page
                else:
                    kept.extend(page)
            yield from kept

    def follow(self, place: Place, wait_s: float) -> Iterator[Message | None]:
        """Messages from now on, and None whenever `wait_s` seconds brought none."""
        with Reading(place, 0) as reading:
            while True:
                page = reading.next(wait_s)
                yield from page or (None,)

    def examine(self, place: Place, group: str) -> Examined:
        """What the server says of `place`; BROKER_UNAVAILABLE, NOT_FOUND."""
        session = Session(place)

        async def asked(client: Client) -> tuple[Any, Any, str]:
            js = session.jetstream(client)
            name = await js.find_stream_name_by_subject(place.topic)
            info = await js.stream_info(name, subjects_filter=place.topic)
            try:
                consumer = await js.consumer_info(name, group)
            except NotFoundError:
                consumer = None
            version = client.connected_server_version
            return info, consumer, f"NATS {version.major}.{version.minor}.{version.patch}"

        try:
            info, consumer, version = session.run(asked)
        finally:
            session.close()
        window = info.config.duplicate_window
        lag = None
        if consumer is not None:
            lag = {info.config.name: consumer.num_pending + consumer.num_ack_pending}
        subjects = info.state.subjects or {}
        return Examined(
            Guarantee.DEDUPLICATED if window else Guarantee.AT_LEAST_ONCE,
            version,
            int(subjects.get(place.topic, 0)),
            lag,
            (f"an answer that is sent twice within {window:g} s is dropped",) if window else (),
        )


def _link(request: LinkRequest) -> NatsLink:
    if request.exactly_once or request.ordered:
        wish = "exactly once" if request.exactly_once else "the order of a key across redeliveries"
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"NATS cannot promise {wish}",
            "Leave that option out, or use sqlite://, redis:// or kafka://.",
        )
    if not request.group or any(mark in request.group for mark in " .*>/\\\t\r\n"):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{request.group!r} cannot be the name of a consumer in NATS",
            "Use letters, digits, - and _ in --group.",
        )
    return NatsLink(request)


transport = NatsTransport()
