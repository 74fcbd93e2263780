"""A consumer of a group over a Redis stream; answers and acknowledgement are one script."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

import redis

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Guarantee,
    LinkRequest,
    LostPartitionsError,
    Message,
    Outgoing,
)
from services.stream.transports import redis_scripts as scripts
from services.stream.transports.redis_client import connect, told
from services.stream.transports.redis_entries import VALUE, FieldWriter, read_entries

_IDLE_SECONDS = 15.0
_TRIM_SECONDS = 10.0
# Behind every entry: reading what is pending after it only tells the server that we live. Not the
# last id of all, which would mean new entries.
_END = b"18446744073709551615-18446744073709551614"
# Redis takes about a million arguments in one command.
_MOST_ARGUMENTS = 1_000_000


class RedisLink:
    """One consumer. `name` is its own and only its own, so what it holds can be told by it.

    What a consumer read and did not commit stays pending under its name. It is read again by a
    consumer of the same name, or claimed by another one when the server has not heard of this one
    for some time. Whether the entries are still ours is looked at in the very script that commits.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, request: LinkRequest) -> None:
        self._request = request
        options = request.source.options
        self._db = connect(request.source)
        self._lasting = "consumer" in options
        self._me = options.get("consumer") or _made_up_name()
        self._idle_ms = int(float(options.get("idle_s", _IDLE_SECONDS)) * 1000)
        self._field = options.get("field", "").encode() or VALUE
        self._trims = options.get("trim") == "acknowledged"
        self._topic = request.source.topic
        self._writer = FieldWriter()
        self._held: set[int | str] = set()  # handed out by poll() and not committed
        self._again: deque[Message] = deque()
        self._cursor: bytes | None = b"0"  # up to where our own pending entries were read
        self._next_claim = self._next_trim = 0.0
        self._unsure: Sequence[int | str] = ()  # a commit was cut off, and may have happened
        self._last = b"$"
        self._scripts = {
            name: self._db.register_script(getattr(scripts, name))
            for name in ("COMMIT", "CLAIM", "READ_ALONE", "LEAVE", "LAG", "TRIM")
        }

    def __enter__(self) -> Self:
        start = "0" if self._request.start == "earliest" else "$"
        with told(self._request.source):
            try:
                self._db.xgroup_create(self._topic, self._request.group, start, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            if not self._lasting:
                self._run("LEAVE", (self._topic, self._lease()), ())
        except MlctlError:
            pass  # then the entries are claimed when we have not been heard of for a while
        finally:
            self._db.close()

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        try:
            with told(self._request.source):
                found = self._poll(limit, wait_s)
        except MlctlError:
            # The answer may have been on its way: then the entries are pending under our name.
            self._cursor = b"0"
            raise
        self._held.update([message.offset for message in found])
        return found

    def commit(self, batch: Commit) -> None:
        if not batch.done:
            return
        offsets = [message.offset for message in batch.done]
        keys, arguments = self._commit_arguments(batch, offsets)
        try:
            reply = self._run("COMMIT", keys, arguments)
        except MlctlError:
            self._unsure = offsets
            raise
        unsure, self._unsure = self._unsure, ()
        self._held.difference_update(offsets)
        if reply[0] == 0:
            happened = unsure == offsets and reply[1] == 0 and len(reply) == 2
            if not happened:
                self._lost(batch.done, frozenset(reply[2:]))
        if self._trims and time.monotonic() >= self._next_trim:
            self._next_trim = time.monotonic() + _TRIM_SECONDS
            self._run("TRIM", (self._topic,), ())

    def acknowledge(self, done: Sequence[Message]) -> None:
        """As commit(), of the position alone."""
        self.commit(Commit(done))

    def lag(self) -> Mapping[str, int]:
        reply = self._run("LAG", (self._topic,), (self._request.group,), named=False)
        return {self._topic: int(reply[0])} if reply else {}

    def _poll(self, limit: int, wait_s: float) -> list[Message]:
        if limit <= 0:
            if self._request.ordered:
                self._read_alone(0)
            self._read(1, None, _END)
            return []
        if self._again:
            return [self._again.popleft() for _ in range(min(limit, len(self._again)))]
        if self._request.ordered:
            return self._poll_alone(limit, wait_s)
        found = self._pending(limit) or self._claimed(limit)
        return found or self._messages(self._read(limit, wait_s, b">"))

    def _poll_alone(self, limit: int, wait_s: float) -> list[Message]:
        """As the one consumer that keeps the order, or standing by for it."""
        if self._cursor is None:
            found = self._read_alone(limit)
            if found or wait_s <= 0:
                return found
            if self._cursor is None:
                # Only to learn that there is something: who may read it is decided by the script.
                streams = ("BLOCK", _milliseconds(wait_s), "STREAMS", self._topic, self._last)
                self._db.execute_command("XREAD", "COUNT", 1, *streams)
                return self._read_alone(limit)
        elif not self._holds_lease():
            return []
        return self._pending(limit)

    def _read_alone(self, limit: int) -> list[Message]:
        keys, more = (self._topic, self._lease()), (self._idle_ms, limit)
        role, *rest = self._scripts["READ_ALONE"](keys, (self._request.group, self._me, *more))
        if role == 2:
            self._cursor = b"0"
        if not rest or not rest[0]:
            return []
        self._last = rest[0][-1][0]
        return self._messages(rest[0])

    def _holds_lease(self) -> bool:
        keys, more = (self._topic, self._lease()), (self._idle_ms, 0)
        role, *_ = self._scripts["READ_ALONE"](keys, (self._request.group, self._me, *more))
        if role == 2:
            self._cursor = b"0"
        return bool(role)

    def _pending(self, limit: int) -> list[Message]:
        """What was read under our name before, and was not handed out since."""
        while self._cursor is not None:
            entries = self._read(limit, None, self._cursor)
            self._cursor = entries[-1][0] if entries else None
            gone = [entry_id for entry_id, fields in entries if fields is None]
            if gone:
                self._db.xack(self._topic, self._request.group, *gone)
            found = self._messages(entries)
            fresh = [message for message in found if message.offset not in self._held]
            if fresh:
                return fresh
        return []

    def _claimed(self, limit: int) -> list[Message]:
        """What others read that are gone."""
        now = time.monotonic()
        if now < self._next_claim:
            return []
        arguments = (self._request.group, self._me, self._idle_ms, limit)
        found = self._messages(self._scripts["CLAIM"]((self._topic,), arguments))
        if not found:
            self._next_claim = now + self._idle_ms / 3000
        return found

    def _read(self, limit: int, wait_s: float | None, after: bytes) -> list[Any]:
        block = ("BLOCK", _milliseconds(wait_s)) if wait_s else ()
        who = ("GROUP", self._request.group, self._me, "COUNT", limit, *block)
        reply = self._db.execute_command("XREADGROUP", *who, "STREAMS", self._topic, after)
        return reply[0][1] if reply else []

    def _messages(self, entries: list[Any]) -> list[Message]:
        return read_entries(self._topic, entries, self._field)

    def _commit_arguments(
        self, batch: Commit, offsets: Sequence[int | str]
    ) -> tuple[tuple[str, ...], list[Any]]:
        request = self._request
        answers = _topic_of(request.answers, batch.answers, self._topic)
        dead = _topic_of(request.dead, batch.dead, self._topic)
        arguments: list[Any] = [int(request.ordered), len(offsets), *offsets]
        arguments += self._writer.arguments(batch.answers)
        arguments += self._writer.arguments(batch.dead)
        if len(arguments) > _MOST_ARGUMENTS:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{len(batch.done)} messages are too many for one step in Redis",
                "Give a smaller --max-batch.",
            )
        return (self._topic, answers, dead, self._lease()), arguments

    def _lost(self, done: Sequence[Message], ours: frozenset[bytes]) -> None:
        """Some belong to others: the rest is handed out again, since all of them are forgotten."""
        self._again.extend(each for each in done if str(each.offset).encode() in ours)
        raise LostPartitionsError

    def _lease(self) -> str:
        return f"{self._topic}:mlctl:{self._request.group}:alone"

    def _run(
        self, name: str, keys: Sequence[str], arguments: Sequence[Any], *, named: bool = True
    ) -> Any:
        who = (self._request.group, self._me) if named else ()
        with told(self._request.source):
            return self._scripts[name](keys, (*who, *arguments))


def _topic_of(place: Any, messages: Sequence[Outgoing], source: str) -> str:
    if place is None and messages:
        raise ValueError("the link has no place for these messages")
    return source if place is None else str(place.topic)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))  # 0 would be for ever


def _made_up_name() -> str:
    return f"{scripts.OURS}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
