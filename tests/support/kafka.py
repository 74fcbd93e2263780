"""A Kafka cluster for tests: librdkafka's mock brokers, which speak the protocol over TCP.

It knows groups, range assignment, offsets and transactions, not fencing nor offsets in
transactions, and it forgets what a partition holds beyond about 5 MB.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from pathlib import Path

import confluent_kafka

_MESSAGE_SIZE = 512
# How long a mock group waits for further members at first, and for members to come again.
_REBALANCE_MS = 30


class Refusal(IntEnum):
    """A broker's errors, by their numbers in the protocol."""

    MESSAGE_TOO_LARGE = 10
    ILLEGAL_GENERATION = 22


class Api(IntEnum):
    """Requests, by their numbers in the protocol."""

    PRODUCE = 0
    OFFSET_COMMIT = 8


def _library() -> ctypes.CDLL:
    """The very librdkafka that the Python package has loaded."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (path,) = folder.glob("librdkafka*.so*")
    library = ctypes.CDLL(os.fspath(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """One broker of this process; `address` is where clients find it."""

    def __init__(self) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        config = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        # The cluster lives in threads of a client that is never used as one.
        self._client = ctypes.c_void_p(
            self._library.rd_kafka_new(0, config, error, ctypes.c_size_t(_MESSAGE_SIZE))
        )
        assert self._client, error.value
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(self._client, ctypes.c_int(1))
        )
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(
            self._cluster, ctypes.c_int32(_REBALANCE_MS)
        )
        found = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.address = found.decode()
        self._asking = confluent_kafka.Producer({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int | None = None) -> None:
        """Make a topic; without a number by asking for it, which is much faster: it has four."""
        if partitions is None:
            assert self._asking.list_topics(topic, timeout=20).topics[topic].error is None
            return
        self._check(
            self._library.rd_kafka_mock_topic_create(
                self._cluster, topic.encode(), ctypes.c_int(partitions), ctypes.c_int(1)
            )
        )

    def refuse(self, api: Api, *errors: Refusal) -> None:
        """Answer the next requests of a kind with these errors, one each."""
        numbers = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api), ctypes.c_size_t(len(errors)), numbers
        )

    def obey(self, api: Api) -> None:
        """Refuse no more requests of a kind."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(api))

    def down(self) -> None:
        """Close all connections, and take none."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._cluster, ctypes.c_int32(1)))

    def up(self) -> None:
        """Take connections again; what it holds is as it was."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._cluster, ctypes.c_int32(1)))

    def close(self) -> None:
        """End it."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    @staticmethod
    def _check(error: int) -> None:
        assert error == 0, f"librdkafka's error {error}"
