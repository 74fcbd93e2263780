"""Answers that join the precomputed ones: `precomputed://NAME`, or `precomputed://NAME?key=FIELD`.

The entity key is a field of the message, or else its own key. A row replaces the one of its key
in the live generation of the model, so that to write an answer again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.precomputed.base import PrecomputedRow, PrecomputedStore, StoreError, check_name
from services.precomputed.settings import read_store_location
from services.precomputed.store_urls import open_store
from services.protocol.keys import is_key
from services.stream.answer_headers import DIGEST, SOURCE
from services.stream.base import Consumer, LinkRequest, Outgoing, StreamConnection, StreamUrl
from services.stream.payloads.precomputed import split_value

# So many keys' newest positions are remembered.
_REMEMBERED = 500_000
Position = tuple[str, tuple[int, ...]]


class PrecomputedProducer:
    """Writes the answers of a stream into a store."""

    def __init__(self, store: PrecomputedStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._newest: dict[str, Position] = {}

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """SINK_UNAVAILABLE while the store is away; INVALID_INPUT for one without a key."""
        now = self._clock.wall()
        rows: dict[str, dict[str, PrecomputedRow]] = {}
        seen: dict[str, Position] = {}
        for message in messages:
            headers = dict(message.headers)
            if DIGEST not in headers or SOURCE not in headers:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT, "only answers of a run can go to precomputed://"
                )
            key, payload = _key_and_row(message)
            position = _position(headers.get(SOURCE, b"").decode())
            if self._is_older(position, seen.get(key) or self._newest.get(key)):
                continue
            seen[key] = position
            rows.setdefault(headers[DIGEST].decode(), {})[key] = PrecomputedRow(key, now, payload)
        try:
            for digest, found in rows.items():
                self._store.upsert(digest, list(found.values()))
        except StoreError as error:
            raise MlctlError(
                ErrorCode.SINK_UNAVAILABLE, f"precomputed answers cannot be stored: {error}"
            ) from error
        if len(self._newest) + len(seen) > _REMEMBERED:
            self._newest.clear()
        self._newest |= seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._store.close()

    @staticmethod
    def _is_older(position: Position, newest: Position | None) -> bool:
        """Whether a message came again that a newer one of its key and partition followed."""
        return newest is not None and position[0] == newest[0] and position[1] < newest[1]


class PrecomputedTransport:
    """A place to write to only."""

    def open_link(self, request: LinkRequest) -> StreamConnection:
        raise _not_read(request.source)

    def open_consumer(self, request: LinkRequest) -> Consumer:
        raise _not_read(request.source)

    def open_producer(self, place: StreamUrl) -> PrecomputedProducer:
        if unknown := sorted(set(place.options) - {"key"}):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{place.shown()} has no option {unknown[0]!r}",
                "Known is: key.",
            )
        return PrecomputedProducer(
            open_store(check_name(place.address.rstrip("/")), read_store_location())
        )


transport = PrecomputedTransport()


def _key_and_row(message: Outgoing) -> tuple[str, bytes]:
    key, payload = split_value(message.value)
    if key:
        return key, payload
    try:
        key = (message.key or b"").decode()
    except UnicodeDecodeError:
        key = ""
    if not is_key(key):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a message has no key that could be an entity's",
            "Name the key field: --out precomputed://NAME?key=FIELD; messages without it "
            "become dead letters.",
        )
    return key, payload


def _position(source: str) -> Position:
    """Partition and offset; the offsets of some brokers are several numbers in one text."""
    partition, _, offset = source.rpartition("/")
    return partition, tuple(int(part) for part in offset.split("-") if part.isdigit())


def _not_read(place: StreamUrl) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT, f"{place.shown()} can be written to, but is no source of messages"
    )
