"""Answers that update precomputed ones: `precomputed://NAME` or `precomputed://NAME?key=FIELD`.

The entity key is a field of the message, or the message's own key. A row replaces the row of its
key in the model's live generation, so writing an answer again changes nothing.
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
from services.stream.answer_headers import DIGEST, SOURCE, headers_of_answer
from services.stream.base import Outgoing, StreamUrl, Transport
from services.stream.payloads.precomputed import split_value

# The newest offsets of so many keys are remembered.
_MAX_KEYS = 500_000
Position = tuple[str, tuple[int, ...]]


class PrecomputedProducer:
    """Writes the answers of a stream into a store."""

    def __init__(self, store: PrecomputedStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._newest: dict[str, Position] = {}

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """SINK_UNAVAILABLE if the store does not answer; INVALID_INPUT for a missing key."""
        now = self._clock.wall()
        rows: dict[str, dict[str, PrecomputedRow]] = {}
        newest: dict[str, Position] = {}
        for message in messages:
            headers = headers_of_answer(message, "precomputed://")
            key, payload = _key_and_row(message)
            position = _position(headers[SOURCE].decode())
            if _is_older(position, newest.get(key) or self._newest.get(key)):
                continue
            newest[key] = position
            rows.setdefault(headers[DIGEST].decode(), {})[key] = PrecomputedRow(key, now, payload)
        try:
            for digest, found in rows.items():
                self._store.upsert(digest, list(found.values()))
        except StoreError as error:
            raise MlctlError(
                ErrorCode.SINK_UNAVAILABLE, f"precomputed answers cannot be stored: {error}"
            ) from error
        if len(self._newest) + len(newest) > _MAX_KEYS:
            self._newest.clear()
        self._newest |= newest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._store.close()


class PrecomputedTransport(Transport):
    """A destination of answers."""

    answers_only = True

    def open_producer(self, url: StreamUrl) -> PrecomputedProducer:
        url.check_options({"key"})
        return PrecomputedProducer(
            open_store(check_name(url.address.rstrip("/")), read_store_location())
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
    """Return partition and offset; the offsets of Redis are two numbers in one text."""
    partition, _, offset = source.rpartition("/")
    return partition, tuple(int(part) for part in offset.split("-") if part.isdigit())


def _is_older(position: Position, newest: Position | None) -> bool:
    """Return whether a newer message of the same key and partition was already written."""
    return newest is not None and position[0] == newest[0] and position[1] < newest[1]
