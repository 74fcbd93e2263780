"""Streams by hand: send lines, show messages, send dead letters again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import ATTEMPTS, OURS
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Headers,
    Message,
    Outgoing,
    StreamUrl,
)
from mlctl.services.stream.transports import transport_of
from mlctl.services.stream.transports.bridge import connect
from mlctl.services.stream.transports.lines import LineReader, from_line

REDRIVE_GROUP = "mlctl-redrive"
_BATCH = 1000
_WAIT_SECONDS = 0.2
_SHOWN_BYTES = 2000
_NULL = "(null)"

OnProgress = Callable[[int], None]


def send(
    url: StreamUrl,
    source: Path | None,
    stop: threading.Event,
    *,
    key: str | None = None,
    on_progress: OnProgress = lambda _sent: None,
) -> int:
    """Send each line of `source`, or of standard input, as a message; return their number.

    With `key`, lines are JSON objects, and that field is the message's key. INVALID_INPUT for a
    line without the key; the lines before it were sent.
    """
    sent = 0
    file = 0 if source is None else _opened(source)
    try:
        lines = LineReader(file)
        with transport_of(url).open_producer(url) as producer:
            while not lines.ended and not stop.is_set():
                found = lines.read(_BATCH, _WAIT_SECONDS)
                batch: list[Outgoing] = []
                try:
                    for _offset, line in found:
                        batch.append(_outgoing(line, key))
                finally:
                    producer.publish(batch)
                    sent += len(batch)
                    on_progress(sent)
    finally:
        if source is not None:
            os.close(file)
    return sent


def redrive(
    letters: StreamUrl, target: StreamUrl, stop: threading.Event, on_progress: OnProgress
) -> int:
    """Send the stored dead letters to `target`, each once where the brokers can.

    They keep their own key, value and headers, and the count of attempts. Messages that become
    dead letters again meanwhile are left for the next call.
    """
    request, sent = ConnectionRequest(letters, REDRIVE_GROUP, target), 0
    with connect(request) as connection:
        left = connection.group_lag()
        while left > 0 and not stop.is_set():
            if found := connection.poll(min(_BATCH, left), _WAIT_SECONDS):
                connection.commit(Commit(found, [*map(_redriven, found)]))
                left -= len(found)
                sent += len(found)
                on_progress(sent)
            else:
                # Another process may redrive, too.
                left = min(left, connection.group_lag())
    return sent


def as_document(message: Message) -> dict[str, Any]:
    """Return a message for scripts; bytes that are not UTF-8 are hexadecimal, and null is None."""
    sent = datetime.fromtimestamp(message.time_ms / 1000, UTC) if message.time_ms else None
    return {
        "partition": message.partition,
        "offset": message.offset,
        "time": None if sent is None else sent.isoformat(timespec="milliseconds"),
        "key": _text(message.key),
        "headers": [[name, _text(value)] for name, value in message.headers],
        "value": _text(message.value),
    }


def as_lines(message: Message) -> Iterator[str]:
    """Yield the lines of a message for people: position and key, headers, value."""
    document = as_document(message)
    parts = [f"{message.partition}/{message.offset}"]
    if document["time"]:
        parts.append(document["time"])
    if document["key"] is not None:
        parts.append(f"key={document['key']}")
    yield "  ".join(parts)
    for name, value in document["headers"]:
        yield f"  {name}: {_NULL if value is None else value}"
    text = _NULL if document["value"] is None else document["value"]
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
    message = from_line(line)
    return message if key is None else message._replace(key=_key(message.value, key))


def _key(value: bytes | None, field: str) -> bytes:
    value = value or b""
    try:
        found = orjson.loads(value)[field]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--key-field {field}: a line is not a JSON object with that field: {value[:80]!r}",
        ) from error
    return found.encode() if isinstance(found, str) else orjson.dumps(found)


def _redriven(letter: Message) -> Outgoing:
    kept: Headers = tuple(
        header for header in letter.headers if not header[0].startswith(OURS)
    ) + tuple(header for header in letter.headers if header[0] == ATTEMPTS)
    return Outgoing(letter.value, letter.key, kept)


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"
