"""A consumer of a JetStream durable: answers are published and stored, then the sources acked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import nats.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Commit, Guarantee, LinkRequest, Message
from services.stream.transports.nats_client import Session
from services.stream.transports.nats_entries import read_message
from services.stream.transports.nats_publish import (
    ACK_SECONDS,
    Publisher,
    fitting,
    refuse_large,
)
from services.stream.transports.nats_pull import Pull
from services.stream.transports.nats_streams import stream_of

_ACK_WAIT_SECONDS = 30.0
_IN_FLIGHT = 20_000


class NatsLink:
    """One member of the group, which is the durable's name.

    A message that is not acknowledged in the consumer's ack_wait goes to another member. While we
    hold it we say so, which starts that time anew. The group's next member to answer it sends the
    same identity, and the stream of the answers drops that while its window remembers the first.
    """

    guarantee = Guarantee.DEDUPLICATED

    def __init__(self, request: LinkRequest) -> None:
        self._request = request
        self._ack_wait = request.source.number("ack_wait_s", _ACK_WAIT_SECONDS)
        self._in_flight = int(request.source.number("in_flight", _IN_FLIGHT))
        self._session = Session(request.source)
        self._publisher = Publisher(self._session)
        self._number = -1
        self._stream = ""
        self._pull: Pull | None = None
        self._held: dict[int | str, str] = {}  # where each message is acknowledged, by its offset
        self._touched = time.monotonic()

    def __enter__(self) -> Self:
        try:
            self._session.run(self._prepare)
        except MlctlError:
            self._session.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._session.run(self._give_back)
        except MlctlError:
            pass  # then they come again after ack_wait
        finally:
            self._session.close()

    @property
    def takeover_s(self) -> float:
        """The consumer's ack_wait."""
        return self._ack_wait

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        return self._session.run(lambda client: self._poll(client, limit, wait_s))

    def commit(self, batch: Commit) -> None:
        if batch.done:
            self._session.run(lambda client: self._commit(client, batch))
            for message in batch.done:
                self._held.pop(message.offset, None)

    def acknowledge(self, done: Sequence[Message]) -> None:
        """As commit(), of the position alone."""
        self.commit(Commit(done))

    def lag(self) -> Mapping[str, int]:
        async def asked(client: Client) -> Any:
            return await self._session.jetstream(client).consumer_info(
                self._stream, self._request.group
            )

        info = self._session.run(asked)
        return {self._stream: (info.num_pending or 0) + (info.num_ack_pending or 0)}

    def group_lag(self) -> int:
        return sum(self.lag().values())  # A durable consumer is the whole group's.

    async def _prepare(self, client: Client) -> None:
        js, request = self._session.jetstream(client), self._request
        self._stream = (await stream_of(js, request.source)).name or ""
        try:
            info = await js.consumer_info(self._stream, request.group)
        except NotFoundError:
            info = await js.add_consumer(self._stream, self._wanted())
        config = info.config
        if config.ack_policy != AckPolicy.EXPLICIT or config.deliver_subject:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the consumer {request.group!r} is not a pull consumer with explicit acks",
                "Choose another --group.",
            )
        self._ack_wait = config.ack_wait or self._ack_wait
        for place in (request.answers, request.dead):
            if place is not None:
                window = (await stream_of(js, place)).duplicate_window
                if window < 2 * self._ack_wait:
                    self.guarantee = Guarantee.AT_LEAST_ONCE
        self._pull = Pull(self._session.api, self._stream, request.group)

    def _wanted(self) -> ConsumerConfig:
        request = self._request
        return ConsumerConfig(
            durable_name=request.group,
            deliver_policy=DeliverPolicy.ALL if request.start == "earliest" else DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,
            max_deliver=-1,
            max_ack_pending=self._in_flight,
            filter_subject=request.source.topic,
        )

    async def _poll(self, client: Client, limit: int, wait_s: float) -> list[Message]:
        pull = self._pull
        assert pull is not None, "poll() before the link was entered"
        if self._number != self._session.number:
            # Whether it is still there: nobody would tell us otherwise.
            await self._session.jetstream(client).consumer_info(self._stream, self._request.group)
            await pull.listen(client)
            self._number = self._session.number
        if time.monotonic() - self._touched > self._ack_wait / 3:
            await self._touch(client, pull)
        if limit <= 0:
            await asyncio.sleep(0)
            return []
        await pull.gather(client, limit, wait_s)
        found = self._taken(pull, limit)
        await pull.ask_ahead(client, limit)
        return found

    def _taken(self, pull: Pull, limit: int) -> list[Message]:
        found: list[Message] = []
        held, arrived, stream = self._held, pull.arrived, self._stream
        while arrived and len(found) < limit:
            raw = arrived.popleft()
            message = read_message(stream, raw)
            # One that is held came again, since we were too slow to say so: acknowledged once.
            if message.offset not in held:
                found.append(message)
            held[message.offset] = raw.reply
        return found

    async def _touch(self, client: Client, pull: Pull) -> None:
        """Tell the server that we still work on what it gave us."""
        for reply in (*self._held.values(), *(raw.reply for raw in pull.arrived)):
            await client.publish(reply, b"+WPI")
        self._touched = time.monotonic()

    async def _commit(self, client: Client, batch: Commit) -> None:
        request = self._request
        refuse_large(batch.answers, client.max_payload)
        dead = [fitting(each, client.max_payload) for each in batch.dead]
        both = ((request.answers, batch.answers), (request.dead, dead))
        await self._publisher.publish(
            client, [(place, each) for place, each in both if place is not None and each]
        )
        for message in batch.done:
            await client.publish(self._held[message.offset], b"+ACK")
        # Not asked for receipts: a server that was restarted gives none for messages that it
        # forgot to have delivered. Those come again, as after any acknowledgement that is lost.
        await client.flush(int(ACK_SECONDS))

    async def _give_back(self, client: Client) -> None:
        """Leave: what is not committed goes to another member at once."""
        arrived = self._pull.arrived if self._pull is not None else ()
        for reply in (*self._held.values(), *(raw.reply for raw in arrived)):
            await client.publish(reply, b"-NAK")
        with suppress(nats.errors.FlushTimeoutError):
            await client.flush()
