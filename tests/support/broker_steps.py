"""The steps of a commit on NATS and Redis, put into their libraries."""

from __future__ import annotations

from typing import Any

import nats.aio.client
import redis.connection

from services.stream.transports.nats_link import NatsLink
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
    *("one acked", "committed"),
)


def install_redis(steps: Steps) -> None:
    """Around the one command that commits, and the bytes of it."""
    connection: Any = redis.connection.AbstractConnection
    link: Any = RedisLink
    send, run = connection.send_packed_command, link._run
    committing = False

    def sent(self: Any, command: Any, check_health: bool = True) -> None:
        parts: list[bytes] = [command] if isinstance(command, bytes) else [*command]
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

    connection.send_packed_command, link._run = sent, ran


def install_nats(steps: Steps) -> None:
    """Around each publish and each acknowledgement; what was passed has reached the server."""
    client: Any = nats.aio.client.Client
    link: Any = NatsLink
    publisher: Any = Publisher
    one, whole, commit = client.publish, publisher.publish, link._commit

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

    async def committed(self: Any, *given: Any) -> None:
        await commit(self, *given)
        steps.passed("committed")

    client.publish, link._commit, publisher.publish = published, committed, all_published
