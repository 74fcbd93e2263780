"""librdkafka's mock brokers in a process of their own: prints where they are, ends with stdin."""

from __future__ import annotations

import sys

from benchmarks.stream.brokers import PARTITIONS
from tests.support.kafka import MockKafka

# Topic numbers go on from the runs on other brokers.
_TOPICS = 64


def main() -> None:
    """Serve until stdin ends."""
    cluster = MockKafka()
    for number in range(_TOPICS):
        for part in ("in", "out"):
            cluster.create(f"t{number}-{part}", PARTITIONS)
    print(cluster.address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
