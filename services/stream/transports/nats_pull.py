"""Messages of a durable pull consumer, asked for one batch ahead."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any

import orjson
from nats.aio.client import Client

from bundle.errors import ErrorCode, MlctlError

_PAUSE_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_MOST_BYTES = 64 << 20
# A request that ended by itself: no messages, time over, its bytes full, the server moves.
_ENDED = {"404", "408", "409"}


class Pull:
    """What the server sends for the requests of one connection; one request at a time."""

    def __init__(self, api: str, stream: str, consumer: str) -> None:
        self._subject = f"{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.arrived: deque[Any] = deque()
        self._moved = asyncio.Event()
        self._inbox = ""
        self._asked = 0
        self._until = 0.0
        self._refused = self._silent = False
        self._gone: str | None = None

    async def listen(self, client: Client) -> None:
        """Begin anew on a new connection; what came over the old one comes again later."""
        self.arrived.clear()
        self._asked = 0
        self._silent = False
        self._inbox = client.new_inbox()
        await client.subscribe(self._inbox, cb=self._take, pending_bytes_limit=0)

    async def gather(self, client: Client, limit: int, wait_s: float) -> None:
        """Until something arrived, at most `wait_s`; then also what came with it."""
        deadline = time.monotonic() + wait_s
        await self._ask(client, limit, wait_s)
        await asyncio.sleep(0)  # what was asked for ahead may all be in the socket
        while not self.arrived and self._gone is None and not self._silent:
            left = deadline - time.monotonic()
            if left <= 0:
                self._check(client)
                break
            self._moved.clear()
            await self._ask(client, limit, left)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._moved.wait()
            if self._refused:
                self._refused = False
                await asyncio.sleep(min(left, _PAUSE_SECONDS))
        if self._silent:
            raise ConnectionError("the consumer does not answer")
        if self._gone is not None:
            raise MlctlError(
                ErrorCode.NOT_FOUND,
                f"NATS ended the consumer: {self._gone}",
                "If it was deleted while a stream ran, start that again: it begins anew.",
            )
        before = -1
        while before < len(self.arrived) < limit:
            before = len(self.arrived)
            await asyncio.sleep(0)

    async def ask_ahead(self, client: Client, limit: int) -> None:
        """Ask for what is there of the next batch, so that it comes while this one is worked on."""
        await self._ask(client, limit, 0.0)
        await asyncio.sleep(0)

    async def _ask(self, client: Client, limit: int, wait_s: float) -> None:
        """At most `limit` messages in `wait_s`: what comes later must not come to us unseen."""
        now = time.monotonic()
        if self._asked > 0 and now < self._until:
            return
        self._asked, self._until = limit, now + wait_s + _GRACE_SECONDS
        wanted: dict[str, Any] = {"batch": limit, "max_bytes": _MOST_BYTES}
        if wait_s > 0:
            wanted["expires"] = int(wait_s * 1e9)
        else:
            wanted["no_wait"] = True
        await client.publish(self._subject, orjson.dumps(wanted), self._inbox)

    def _check(self, client: Client) -> None:
        """A connection that is cut says so; one that is silent was asked, and did not answer."""
        if not client.is_connected or (self._asked > 0 and time.monotonic() > self._until):
            raise ConnectionError("the connection is lost")

    async def _take(self, message: Any) -> None:
        if message.reply:  # where it is acknowledged; what the server itself says has none
            self._asked -= 1
            self.arrived.append(message)
            self._moved.set()
            return
        status = (message.headers or {}).get("Status")
        if status in _ENDED:
            self._asked = 0
            self._refused = status == "409"
            said = (message.headers or {}).get("Description", "")
            if "Deleted" in said:
                self._gone = said
        elif status == "503":
            self._silent = True  # nobody answers for the consumer
        self._moved.set()
