"""The brokers of the benchmark, each on its own and gone at the end, and what they are sent."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from mlctl.services.stream.base import ConnectionRequest, Outgoing, StreamUrl
from mlctl.services.stream.transports import transport_of
from tests.services.precomputed.servers import redis_server

SCHEMES = ("sqlite", "kafka", "redis")
# The mock brokers keep 5 MB of each partition.
PARTITIONS = 16
WIDTH = 64
_PART = 4000
_NUMBER = itertools.count()


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's address; each call of urls() names new topics."""

    scheme: str
    address: str
    folder: Path

    def urls(self) -> ConnectionRequest:
        """Where messages, answers and dead letters are to be; nothing is there yet."""
        number = next(_NUMBER)
        if self.scheme == "sqlite":
            base = StreamUrl.parse(f"sqlite://{self.folder / f'{number}.db'}#x")
        elif self.scheme == "kafka":
            # The mock answers a fetch that found nothing after this time, whatever comes meanwhile.
            base = StreamUrl.parse(f"kafka://{self.address}?fetch.wait.max.ms=5#x")
        else:
            base = StreamUrl.parse(f"{self.scheme}://{self.address}#x")
        source, answers, dead = (
            base.with_topic(f"t{number}-{part}") for part in ("in", "out", "dead")
        )
        for url in (source, answers, dead):
            with transport_of(url).open_producer(url) as producer:
                producer.publish(())
        return ConnectionRequest(source, f"g{number}", answers, dead)


@contextmanager
def broker(scheme: str, folder: Path) -> Iterator[Broker]:
    """A broker of that scheme; Kafka's are librdkafka's mock ones, in a process of their own."""
    folder.mkdir()
    if scheme == "sqlite":
        yield Broker(scheme, "", folder)
    elif scheme == "redis":
        with redis_server(folder) as redis:
            yield Broker(scheme, f"127.0.0.1:{redis.port}/0", folder)
    else:
        command = [sys.executable, "-m", "benchmarks.stream.mock_kafka"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield Broker(scheme, process.stdout.readline().strip(), folder)
            finally:
                process.kill()


def values(payload: str, count: int) -> list[bytes]:
    """Messages of one row each: 256 bytes, or about 600 as JSON."""
    rows = np.random.default_rng(3).normal(size=(1000, WIDTH)).astype(np.float32)
    if payload == "raw":
        made = [row.tobytes() for row in rows]
    else:
        made = [orjson.dumps({"x": [round(float(each), 4) for each in row]}) for row in rows]
    return [*itertools.islice(itertools.cycle(made), count)]


def fill(url: StreamUrl, messages: list[bytes], key: bytes | None = None) -> None:
    """Send them; their keys are their numbers, or all are `key`."""
    with transport_of(url).open_producer(url) as producer:
        for start in range(0, len(messages), _PART):
            part = enumerate(messages[start : start + _PART], start)
            producer.publish([Outgoing(value, key or b"%d" % n) for n, value in part])
