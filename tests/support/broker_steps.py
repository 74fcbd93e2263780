"""The steps of a commit on NATS and Redis, put into their libraries."""

from __future__ import annotations

from typing import Any

import nats.aio.client
import redis.connection

from services.stream.transports.nats_publish import Publisher
from services.stream.transports.redis_link import RedisLink
from tests.support.broker_kill import Steps

REDIS_STEPS = (
    "read sent",
    "polled",
    "before commit",
    "commit half sent",
    "commit sent",
    "committed",
)
NATS_STEPS = (
    *("polled", "before publish", "one published", "published"),
    *("one acked", "before the last ack", "acked"),
)


def install_redis(steps: Steps) -> None:
    """Around the one command that commits, and the bytes of it."""
    send = redis.connection.AbstractConnection.send_packed_command
    run = RedisLink._run
    committing = False

    def sent(self: Any, command: Any, check_health: bool = True) -> None:
        parts = [command] if isinstance(command, (bytes, str)) else [*command]
        if committing:
            whole = b"".join(parts)
            send(self, [whole[: len(whole) // 2]], check_health)
            steps.passed("commit half sent")
            send(self, [whole[len(whole) // 2 :]], False)
            steps.passed("commit sent")
        else:
            send(self, parts, check_health)
            if b"XREADGROUP" in parts[0]:
                steps.passed("read sent")

    def ran(self: Any, name: str, *rest: Any, **named: Any) -> Any:
        nonlocal committing
        if name != "COMMIT":
            return run(self, name, *rest, **named)
        steps.passed("before commit")
        committing = True
        try:
            return run(self, name, *rest, **named)
        finally:
            committing = False
            steps.passed("committed")

    redis.connection.AbstractConnection.send_packed_command = sent
    RedisLink._run = ran  # type: ignore[method-assign]


def install_nats(steps: Steps) -> None:
    """Around each publish and each acknowledgement; what was passed has reached the server."""
    client: Any = nats.aio.client.Client
    one, whole, request = client.publish, Publisher.publish, client.request

    async def published(
        self: Any, subject: str, payload: bytes = b"", reply: str = "", headers: Any = None
    ) -> None:
        await one(self, subject, payload, reply, headers)
        answers = {"out", "dead"}
        step = "one published" if subject in answers else "one acked"
        if step == steps.step and (subject in answers or (payload == b"+ACK" and not reply)):
            await self.flush()
            steps.passed(step)

    async def all_published(self: Any, *given: Any) -> None:
        steps.passed("before publish")
        await whole(self, *given)
        steps.passed("published")

    async def requested(
        self: Any, subject: str, payload: bytes = b"", *rest: Any, **more: Any
    ) -> Any:
        if payload != b"+ACK":
            return await request(self, subject, payload, *rest, **more)
        steps.passed("before the last ack")
        reply = await request(self, subject, payload, *rest, **more)
        steps.passed("acked")
        return reply

    client.publish, client.request = published, requested
    Publisher.publish = all_published  # type: ignore[method-assign]
