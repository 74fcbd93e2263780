"""Redis Streams: exactly once inside one server, since answers and acknowledgement are one script.

A place is `redis://HOST:PORT/DATABASE#STREAM` (`rediss` over TLS). Source, answers and dead letters
must be of one server: not spread over a cluster. How durable it all is, the server's settings say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Consumer,
    Examined,
    Guarantee,
    LinkRequest,
    Message,
    Outgoing,
    Producer,
    StreamConnection,
    StreamUrl,
    group_in_use,
    no_group,
)
from services.stream.transports import redis_scripts as scripts
from services.stream.transports.redis_client import connect, translate_errors
from services.stream.transports.redis_entries import VALUE, FieldWriter, read_entries
from services.stream.transports.redis_link import RedisLink, idle_ms, lease_key

_PAGE = 1000


class RedisProducer:
    """Writes to one stream, in pieces that do not hold up the server for long."""

    def __init__(self, place: StreamUrl) -> None:
        self._place = place
        self._db = connect(place)
        self._add = self._db.register_script(scripts.ADD)
        self._writer = FieldWriter()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        with translate_errors(self._place):
            for at in range(0, len(messages), _PAGE):
                arguments = self._writer.arguments(messages[at : at + _PAGE])
                self._add((self._place.topic,), arguments)

    def __enter__(self) -> Self:
        with translate_errors(self._place):
            self._db.ping()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()


class RedisTransport:
    """The transport of `redis://` and `rediss://`."""

    def open_link(self, request: LinkRequest) -> StreamConnection:
        for place in (request.answers, request.dead):
            if place is not None and place.address != request.source.address:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{place.shown()} is not in the server and database of the source",
                    "One step commits to one server only.",
                )
        return RedisLink(request)

    def open_consumer(self, request: LinkRequest) -> Consumer:
        return RedisLink(request)

    def open_producer(self, place: StreamUrl) -> Producer:
        return RedisProducer(place)

    def browse(self, place: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        """The entries that are there now, oldest first: all, or only the `last` ones."""
        field = _field(place)
        with connect(place) as db:
            if last is not None:
                with translate_errors(place):
                    rows = db.execute_command("XREVRANGE", place.topic, "+", "-", "COUNT", last)
                yield from read_entries(place.topic, reversed(rows), field)
                return
            end, after = _newest(db, place), b"-"
            while True:
                with translate_errors(place):
                    rows = db.execute_command("XRANGE", place.topic, after, end, "COUNT", _PAGE)
                yield from read_entries(place.topic, rows, field)
                if len(rows) < _PAGE:
                    return
                after = b"(" + rows[-1][0]

    def follow(self, place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
        """Entries from now on, and None whenever `wait_s` seconds brought none."""
        with connect(place) as db:
            after = _newest(db, place)
            block = ("COUNT", _PAGE, "BLOCK", max(1, int(wait_s * 1000)))
            while True:
                with translate_errors(place):
                    reply = db.execute_command("XREAD", *block, "STREAMS", place.topic, after)
                if not reply:
                    yield None
                    continue
                rows = reply[0][1]
                after = rows[-1][0]
                yield from read_entries(place.topic, rows, _field(place))

    def examine(self, place: StreamUrl, group: str) -> Examined:
        """What the server says of `place`; BROKER_UNAVAILABLE, NOT_FOUND."""
        with translate_errors(place), connect(place) as db:
            server, kept = db.info("server"), db.info("persistence")
            if not db.exists(place.topic):
                raise MlctlError(
                    ErrorCode.NOT_FOUND,
                    f"there is no stream {place.topic!r} in {place.shown()}",
                    "Send it a message, or start a consumer.",
                )
            lag = db.register_script(scripts.LAG)((place.topic,), (group,))
            remarks = [_durability(kept), *_waited_for(db, place, group)]
            if lag and not lag[1]:
                remarks.append("the lag is more than what is shown: it was not counted to its end")
            return Examined(
                Guarantee.EXACTLY_ONCE,
                f"Redis {server['redis_version']}",
                int(db.xlen(place.topic)),
                {place.topic: int(lag[0])} if lag else None,
                tuple(remarks),
            )

    def forget(self, place: StreamUrl, group: str) -> None:
        """Delete `group`; NOT_FOUND, or JOB_RUNNING if one of its consumers is not idle."""
        with translate_errors(place), connect(place) as db:
            keys = (place.topic, lease_key(place.topic, group))
            found = db.register_script(scripts.FORGET)(keys, (group, idle_ms(place)))
        if found == 0:
            raise no_group(group)
        if found < 0:
            raise group_in_use(group)


def _field(place: StreamUrl) -> bytes:
    return place.options.get("field", "").encode() or VALUE


def _newest(db: Any, place: StreamUrl) -> bytes:
    """The id of the newest entry that is there."""
    with translate_errors(place):
        rows = db.execute_command("XREVRANGE", place.topic, "+", "-", "COUNT", 1)
    return bytes(rows[0][0]) if rows else b"0-0"


def _waited_for(db: Any, place: StreamUrl, group: str) -> list[str]:
    """Say which other groups have not committed all: `trim=acknowledged` keeps that for them."""
    found = []
    newest = _newest(db, place)
    for each in db.xinfo_groups(place.topic):
        name = each["name"].decode()
        if name != group and (each["pending"] or each["last-delivered-id"] != newest):
            found.append(f"group {name!r} has not committed all: trimming waits for it")
    return found


def _durability(kept: dict[str, Any]) -> str:
    if kept.get("aof_enabled"):
        return "an append-only file is kept: what the server's appendfsync allows may be lost"
    return "no append-only file is kept: what came after the last snapshot dies with the server"


transport = RedisTransport()
