"""One model takes over a stream from another under load: real processes, one of them killed."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from mlctl.services.stream.base import Message, Outgoing, StreamUrl
from mlctl.services.stream.transports.sqlite import transport
from tests.support.bundles import make_bundle
from tests.support.wait import PATIENCE_SECONDS, wait_until

_PART = 20
_PAUSE_SECONDS = 0.01


class Load:
    """Sends messages until it is stopped; `sent` of them are durable."""

    def __init__(self, place: StreamUrl) -> None:
        self.sent = 0
        self._place = place
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._enough.set()
        self._thread.join(PATIENCE_SECONDS)

    def _send(self) -> None:
        with transport.open_producer(self._place) as producer:
            while not self._enough.wait(_PAUSE_SECONDS):
                producer.publish([Outgoing(b'{"x": [1, 0, 0, 0]}')] * _PART)
                self.sent += _PART


class World:
    """A log, and runs over it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.source = self.place("in")
        self.answers = self.place("out")
        self.digests = {
            name: make_bundle(home / name, name=name, scale=scale).digest
            for name, scale in (("blue", 2.0), ("green", 3.0))
        }

    def place(self, topic: str) -> StreamUrl:
        # Whoever is killed keeps its partition for as long as its lease.
        return StreamUrl.parse(f"sqlite://{self._home / 'events.db'}?lease=0.5#{topic}")

    def run(self, model: str, *options: str) -> subprocess.Popen[bytes]:
        file = f"sqlite://{self._home / 'events.db'}?lease=0.5"
        ends = ["--in", f"{file}#in", "--out", f"{file}#out"]
        command = ["stream", "run", str(self._home / model), *ends, *options]
        return subprocess.Popen(
            [sys.executable, "-m", "mlctl.cli.main", *command], stderr=subprocess.PIPE
        )

    def read(self) -> list[Message]:
        return [*transport.browse(self.answers)]

    def by(self, model: str) -> int:
        """How many answers are this model's."""
        digest = self.digests[model].encode()
        return sum(dict(each.headers)["mlctl-digest"] == digest for each in self.read())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def joined(process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has printed its guarantee: it stands by in the group."""
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"Exactly once")


@contextmanager
def ending(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.serial
def test_stream__another_model_in_the_group__continues_at_its_position(world: World) -> None:
    with transport.open_producer(world.answers), Load(world.source) as load:
        blue = world.run("blue")
        with ending(blue):
            wait_until(lambda: world.by("blue") > 200)
            green = world.run("green")
            with ending(green):
                joined(green)
                blue.send_signal(signal.SIGTERM)
                assert blue.wait(PATIENCE_SECONDS) == 0, "it ended in order"
                wait_until(lambda: world.by("green") > 200)
                next_one = world.run("blue", "--max-latency-ms", "50")
                with ending(next_one):
                    joined(next_one)
                    green.kill()
                    green.wait(PATIENCE_SECONDS)
                    before = world.by("blue")
                    wait_until(lambda: world.by("blue") > before + 200)
                    load.__exit__()
                    wait_until(lambda: len(world.read()) == load.sent)
                    next_one.send_signal(signal.SIGTERM)
                    assert next_one.wait(PATIENCE_SECONDS) == 0
    check(world, load.sent)


def check(world: World, sent: int) -> None:
    """Each message has one answer, and each model answered one part of them."""
    found = world.read()
    order = [int((dict(each.headers)["mlctl-source"] or b"").rpartition(b"/")[2]) for each in found]
    assert order == [*range(sent)], "lost, doubled or out of order"
    digests = [(dict(each.headers)["mlctl-digest"] or b"").decode() for each in found]
    names = {digest: name for name, digest in world.digests.items()}
    parts = [names[digest] for digest, _ in itertools.groupby(digests)]
    assert parts == ["blue", "green", "blue"]
