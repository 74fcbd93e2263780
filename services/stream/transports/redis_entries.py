"""Messages as entries of a Redis stream: the fields `value` and `key`, and headers by name.

So that `XADD orders * value '{"x": 1}' trace abc` is a message with a header.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from services.stream.answer_headers import ERROR, OURS
from services.stream.base import Headers, Message, Outgoing

# A script of Redis can give a command about 8,000 values: names and contents of the fields.
MOST_HEADERS = 2000
VALUE = b"value"
_KEY = b"key"
# Before the name of a header that would be taken for a message's own field.
_ESCAPE = b"header."


def read_entries(topic: str, entries: Iterable[Any], field: bytes = VALUE) -> list[Message]:
    """The messages of [id, [name, value, ...]]; entries that were deleted are left out."""
    found = []
    for entry_id, fields in entries:
        if fields is None:
            continue
        text = entry_id.decode()
        time_ms = int(text[: text.index("-")])
        if len(fields) == 2 and fields[0] == field:
            found.append(Message(topic, text, fields[1], None, (), time_ms))
        else:
            found.append(_with_headers(topic, text, fields, field, time_ms))
    return found


def _with_headers(
    topic: str, entry_id: str, fields: Sequence[bytes], field: bytes, time_ms: int
) -> Message:
    value: bytes | None = None
    key: bytes | None = None
    headers = []
    pairs = iter(fields)
    for name, content in zip(pairs, pairs, strict=True):
        if value is None and name == field:
            value = content
        elif key is None and name == _KEY:
            key = content
        else:
            headers.append((_unescaped(name), content))
    return Message(topic, entry_id, value or b"", key, tuple(headers), time_ms)


def _unescaped(name: bytes) -> str:
    return name.removeprefix(_ESCAPE).decode(errors="surrogateescape")


class FieldWriter:
    """Turns messages into the arguments of our scripts: a count of fields, and the fields."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}

    def arguments(self, messages: Sequence[Outgoing]) -> list[Any]:
        """The number of messages, then each as [count, VALUE, value, name, content, ...].

        PAYLOAD_TOO_LARGE for too many headers; a dead letter is sent without its source's.
        """
        flat: list[Any] = [len(messages)]
        last: Headers = ()
        shared: list[bytes] = []
        for value, key, all_headers in messages:
            wide = len(all_headers) > MOST_HEADERS
            headers = _bounded(all_headers) if wide else all_headers
            if headers is not last:
                last, shared = headers, self._flat(headers)
            if key is None:
                flat += (2 + len(shared), VALUE, value)
            else:
                flat += (4 + len(shared), VALUE, value, _KEY, key)
            flat += shared
        return flat

    def _flat(self, headers: Headers) -> list[bytes]:
        names = self._names
        flat: list[bytes] = []
        for name, content in headers:
            known = names.get(name)
            if known is None:
                known = names[name] = _escaped(name)
            flat += (known, content)
        return flat


def _bounded(headers: Headers) -> Headers:
    """A dead letter never blocks the stream: too many headers stay in the source alone.

    PAYLOAD_TOO_LARGE for other messages, before anything is sent: a script that ends in the middle
    is not undone.
    """
    ours = tuple(header for header in headers if header[0].startswith(OURS))
    if not any(name == ERROR for name, _ in ours) or len(ours) > MOST_HEADERS:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"a message has {len(headers)} headers; to Redis it may have {MOST_HEADERS}",
            "Send it with fewer headers.",
        )
    note = f"{len(headers) - len(ours)} headers"
    return (*ours, ("mlctl-left-out", note.encode()))


def _escaped(name: str) -> bytes:
    raw = name.encode(errors="surrogateescape")
    return _ESCAPE + raw if raw in {VALUE, _KEY} or raw.startswith(_ESCAPE) else raw
