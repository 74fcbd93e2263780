"""What people do with a stream by hand: send lines, look, and send dead letters again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.answer_headers import ATTEMPTS, OURS
from services.stream.base import (
    Browsable,
    Commit,
    Forgetting,
    Headers,
    LinkRequest,
    Message,
    Outgoing,
    StreamUrl,
)
from services.stream.transports import transport_of
from services.stream.transports.bridge import connect
from services.stream.transports.jsonl import LineReader
from services.stream.transports.lines import from_line

REDRIVE_GROUP = "mlctl-redrive"
_BATCH = 1000
_WAIT_SECONDS = 0.2
# With a rate, so many batches in a second.
_STEPS = 20
_SHOWN_BYTES = 2000

Told = Callable[[int], None]


def browsable(place: StreamUrl) -> Browsable:
    """The transport of `place`; INVALID_INPUT if its streams cannot be looked at."""
    transport = transport_of(place)
    if not isinstance(transport, Browsable):
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"streams of {place.scheme} cannot be looked at from outside"
        )
    return transport


def send(
    place: StreamUrl,
    source: Path | None,
    stop: threading.Event,
    *,
    key: str | None = None,
    rate: float | None = None,
    told: Told = lambda _sent: None,
    clock: Clock | None = None,
) -> int:
    """Send each line of `source`, or of the standard input, as a message; how many were sent.

    With `key`, lines are JSON objects, and that field of theirs is their key. At most `rate`
    messages a second. INVALID_INPUT for a line without the key; what came before it was sent.
    """
    clock = clock or SystemClock()
    sent, began = 0, clock.monotonic()
    most = _BATCH if rate is None else max(1, min(_BATCH, int(rate / _STEPS)))
    file = 0 if source is None else _opened(source)
    try:
        lines = LineReader(StreamUrl("-"), file)
        with transport_of(place).open_producer(place) as producer:
            while not lines.ended and not stop.is_set():
                found = lines.lines(most, _WAIT_SECONDS)
                batch: list[Outgoing] = []
                try:
                    for _offset, line in found:
                        batch.append(_outgoing(line, key))
                finally:
                    producer.publish(batch)
                    sent += len(batch)
                    told(sent)
                if rate is not None and batch:
                    stop.wait(max(0.0, began + sent / rate - clock.monotonic()))
    finally:
        if source is not None:
            os.close(file)
    return sent


def redrive(letters: StreamUrl, target: StreamUrl, stop: threading.Event, told: Told) -> int:
    """Send the dead letters that are there to `target`, each once where the brokers can.

    Their own key, value and headers; of ours only the count of attempts. What dies again
    meanwhile is left for the next time.
    """
    request, sent = LinkRequest(letters, REDRIVE_GROUP, target), 0
    with connect(request) as link:
        left = link.group_lag()
        while left > 0 and not stop.is_set():
            if found := link.poll(min(_BATCH, left), _WAIT_SECONDS):
                link.commit(Commit(found, [*map(_again, found)]))
                left -= len(found)
                sent += len(found)
                told(sent)
            else:
                # Another process may have sent some.
                left = min(left, link.group_lag())
    return sent


def forget(place: StreamUrl, group: str) -> None:
    """Delete the position of `group`, so that retention no longer keeps messages for it.

    INVALID_INPUT where the broker keeps nothing for a group, as Kafka.
    """
    transport = transport_of(place)
    if not isinstance(transport, Forgetting):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"retention of {place.scheme} does not wait for groups",
            "Nothing has to be forgotten.",
        )
    transport.forget(place, group)


def as_document(message: Message) -> dict[str, Any]:
    """A message for scripts; bytes that are not UTF-8 are hexadecimal."""
    sent = datetime.fromtimestamp(message.time_ms / 1000, UTC) if message.time_ms else None
    return {
        "partition": message.partition,
        "offset": message.offset,
        "time": None if sent is None else sent.isoformat(timespec="milliseconds"),
        "key": None if message.key is None else _text(message.key),
        "headers": [[name, _text(value)] for name, value in message.headers],
        "value": _text(message.value),
    }


def as_lines(message: Message) -> Iterator[str]:
    """A message for people: where it is and its key, its headers, its value."""
    document = as_document(message)
    parts = [f"{message.partition}/{message.offset}"]
    if document["time"]:
        parts.append(document["time"])
    if document["key"] is not None:
        parts.append(f"key={document['key']}")
    yield "  ".join(parts)
    for name, value in document["headers"]:
        yield f"  {name}: {value}"
    text = document["value"]
    more = len(text) - _SHOWN_BYTES
    yield f"  {text[:_SHOWN_BYTES]}" + (f"... ({more} more characters)" if more > 0 else "")


def _opened(source: Path) -> int:
    try:
        return os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{source} cannot be read: {error.strerror}"
        ) from error


def _outgoing(line: bytes, key: str | None) -> Outgoing:
    said = from_line(line)
    found = said.key if key is None else _key(said.value, key)
    return Outgoing(said.value, found, said.headers)


def _key(value: bytes, field: str) -> bytes:
    try:
        found = orjson.loads(value)[field]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--key-field {field}: a line is no JSON object with that field: {value[:80]!r}",
        ) from error
    return found.encode() if isinstance(found, str) else orjson.dumps(found)


def _again(letter: Message) -> Outgoing:
    kept: Headers = tuple(
        header for header in letter.headers if not header[0].startswith(OURS)
    ) + tuple(header for header in letter.headers if header[0] == ATTEMPTS)
    return Outgoing(letter.value, letter.key, kept)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"
