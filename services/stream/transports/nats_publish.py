"""Publishing to JetStream: many messages on their way, and all of them acknowledged at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from nats.aio.client import Client

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Outgoing, Place, RefusedAnswersError
from services.stream.transports.nats_client import Session
from services.stream.transports.nats_entries import HeaderWriter

ACK_SECONDS = 10.0
# The server refuses more than 10,000 that it has not stored yet.
_ON_THE_WAY = 4000
_LOOK_EACH = 100
# Of a header or a message beside its name and its content, at most.
_FRAME = 64


class Publisher:
    """Publishes on a session's connection, one batch at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = -1
        self._inbox = ""
        self._count = 0
        self._open: set[str] = set()
        self._moved = asyncio.Event()
        self._refused: MlctlError | None = None
        self._writer = HeaderWriter()

    async def publish(self, client: Client, batches: Iterable[tuple[Place, Any]]) -> None:
        """Returns when the streams of all places have stored their messages."""
        await self._listen(client)
        self._open.clear()
        self._refused = None
        for place, messages in batches:
            await self._send(client, place.topic, messages)
        await self._wait(0)

    async def _send(self, client: Client, subject: str, messages: Iterable[Outgoing]) -> None:
        inbox, still_open, headers = self._inbox, self._open, self._writer.headers
        for number, message in enumerate(messages, self._count):
            token = str(number)
            still_open.add(token)
            await client.publish(subject, message.value, inbox + token, headers(subject, message))
            if number % _LOOK_EACH == 0:
                await self._wait(_ON_THE_WAY)
            self._count = number + 1

    async def _wait(self, most: int) -> None:
        """Until at most `most` are not acknowledged."""
        while len(self._open) > most:
            self._moved.clear()
            async with asyncio.timeout(ACK_SECONDS):
                await self._moved.wait()
        if self._refused is not None:
            raise self._refused

    async def _listen(self, client: Client) -> None:
        if self._number == self._session.number:
            return
        inbox = client.new_inbox() + "."
        await client.subscribe(inbox + "*", cb=self._acknowledged)
        self._inbox, self._number = inbox, self._session.number

    async def _acknowledged(self, message: Any) -> None:
        self._open.discard(message.subject[len(self._inbox) :])
        if b'"error"' in message.data or not message.data:
            self._refused = _refusal(message.data) or self._refused
        if len(self._open) % _LOOK_EACH == 0:
            self._moved.set()


def refuse_large(answers: Sequence[Outgoing], most: int) -> None:
    """RefusedAnswersError for those that are larger than the server's `max_payload`."""
    large = [i for i, each in enumerate(answers) if _is_large(each, most)]
    if large:
        why = f"the answer is larger than {most} bytes, the server's max_payload"
        raise RefusedAnswersError(dict.fromkeys(large, why))


def fitting(dead: Outgoing, most: int) -> Outgoing:
    """A dead letter never blocks the stream: what is too large stays in the source alone."""
    if not _is_large(dead, most):
        return dead
    note = ("mlctl-left-out", b"%d" % len(dead.value))
    return dead._replace(value=b"", headers=(*dead.headers, note))


def _is_large(message: Outgoing, most: int) -> bool:
    """Headers count as well, and bytes that are no text are a third longer there."""
    if len(message.value) <= most // 2:
        return False
    pairs = (*message.headers, ("key", message.key or b""))
    headers = sum(len(name) + 2 * len(value) + _FRAME for name, value in pairs)
    return len(message.value) + headers + 2 * len(message.identity) + _FRAME > most


def _refusal(data: bytes) -> MlctlError | None:
    """Why the server did not store a message; None if it did."""
    said: Any = {"code": 503, "description": "no stream answered"}
    if data:
        said = orjson.loads(data).get("error")
    if said is None:
        return None
    text = f"NATS does not store a message: {said.get('description', 'no reason given')}"
    if int(said.get("code", 500)) in {429, 500, 503}:
        return MlctlError(ErrorCode.BROKER_UNAVAILABLE, text)
    return MlctlError(ErrorCode.INVALID_INPUT, text)
