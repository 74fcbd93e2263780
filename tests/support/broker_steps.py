"""The steps of a commit on Redis, put into its library."""

from __future__ import annotations

from typing import Any

import redis.connection

from mlctl.services.stream.transports.redis import RedisConnection
from tests.support.broker_kill import Steps

REDIS_STEPS = (
    "read sent",
    "polled",
    "before commit",
    "commit half sent",
    "commit sent",
    "committed",
)


def install_redis(steps: Steps) -> None:
    """Around the one command that commits, and the bytes of it."""
    connection: Any = redis.connection.AbstractConnection
    link: Any = RedisConnection
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
