"""A consumer of a group over a Redis stream; answers and acknowledgement are one script."""

from __future__ import annotations

import os
import secrets
import socket
import time
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
    StreamUrl,
)
from services.stream.transports import redis_scripts as scripts
from services.stream.transports.redis_client import connect, missing, translate_errors
from services.stream.transports.redis_entries import VALUE, FieldWriter, read_entries

_IDLE_SECONDS = 15.0
_TRIM_SECONDS = 10.0
# Behind every entry: reading what is pending after it only tells the server that we live. Not the
# last id of all, which would mean new entries.
_END = b"18446744073709551615-18446744073709551614"
# What the script that reads with a lease says first; 1 is for whoever has it.
_STANDING_BY, _TAKING_OVER = 0, 2
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
        self._idle_ms = idle_ms(request.source)
        self._field = options.get("field", "").encode() or VALUE
        self._trims = options.get("trim") == "acknowledged"
        self._topic = request.source.topic
        self._writer = FieldWriter()
        self._held: set[int | str] = set()  # handed out by poll() and not committed
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
        with translate_errors(self._request.source):
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

    @property
    def takeover_s(self) -> float:
        """The option `idle_s`."""
        return self._idle_ms / 1000

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        try:
            with translate_errors(self._request.source):
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
            happened = unsure == offsets and reply[1:] == [0, 0]
            if not happened:
                # All that was handed out is forgotten, also later batches: what is still ours is
                # read once more.
                self._held.clear()
                self._cursor = b"0"
                raise LostPartitionsError

    def acknowledge(self, done: Sequence[Message]) -> None:
        """As commit(), of the position alone."""
        self.commit(Commit(done))

    def lag(self) -> Mapping[str, int]:
        return {self._topic: self.group_lag()}

    def group_lag(self) -> int:
        """Return what no member has committed; NOT_FOUND if the group was deleted."""
        reply = self._run("LAG", (self._topic,), (self._request.group,), named=False)
        if not reply:
            raise missing(self._request.source)
        return int(reply[0])

    def _poll(self, limit: int, wait_s: float) -> list[Message]:
        if self._trims and time.monotonic() >= self._next_trim:
            self._scripts["TRIM"]((self._topic,))
            self._next_trim = time.monotonic() + _TRIM_SECONDS
        if limit <= 0:
            if self._request.ordered:
                self._read_alone(0)
            self._read(1, None, _END)
            return []
        if self._request.ordered:
            return self._poll_alone(limit, wait_s)
        found = self._pending(limit) or self._claimed(limit)
        return found or self._messages(self._read(limit, wait_s, b">"))

    def _poll_alone(self, limit: int, wait_s: float) -> list[Message]:
        """As the one consumer that keeps the order, or standing by for it."""
        role, found = self._read_alone(limit if self._cursor is None else 0)
        if role == _STANDING_BY:
            time.sleep(wait_s)
            return []
        if self._cursor is not None:
            return self._pending(limit)
        if not found and wait_s > 0:
            # Only to learn that there is something: who may read it is decided by the script.
            streams = ("BLOCK", _milliseconds(wait_s), "STREAMS", self._topic, self._last)
            if self._db.execute_command("XREAD", "COUNT", 1, *streams):
                found = self._read_alone(limit)[1]
        return found

    def _read_alone(self, limit: int) -> tuple[int, list[Message]]:
        """Which role the lease gives us, and at most `limit` new entries."""
        who = (self._request.group, self._me, self._idle_ms, limit)
        role, *rest = self._scripts["READ_ALONE"]((self._topic, self._lease()), who)
        if role == _TAKING_OVER:
            self._cursor = b"0"
        entries = rest[0] if rest and rest[0] else []
        if entries:
            self._last = entries[-1][0]
        return role, self._messages(entries)

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
            # A server that was restarted may have forgotten a commit: then it is pending again.
            self._cursor = b"0"
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

    def _lease(self) -> str:
        return lease_key(self._topic, self._request.group)

    def _run(
        self, name: str, keys: Sequence[str], arguments: Sequence[Any], *, named: bool = True
    ) -> Any:
        who = (self._request.group, self._me) if named else ()
        try:
            with translate_errors(self._request.source):
                return self._scripts[name](keys, (*who, *arguments))
        except MlctlError:
            self._cursor = b"0"  # as in poll()
            raise


def lease_key(topic: str, group: str) -> str:
    """The key of the lease by which one consumer of `group` reads in order."""
    return f"{topic}:mlctl:{group}:alone"


def idle_ms(place: StreamUrl) -> int:
    """Milliseconds of silence after which a consumer is given up."""
    return max(1, int(place.number("idle_s", _IDLE_SECONDS) * 1000))


def _topic_of(place: Any, messages: Sequence[Outgoing], source: str) -> str:
    if place is None and messages:
        raise ValueError("the link has no place for these messages")
    return source if place is None else str(place.topic)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))  # 0 would be for ever


def _made_up_name() -> str:
    return f"{scripts.OURS}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
