"""SIGKILL at each step of a commit on Redis, and a server that is restarted under load."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.services.stream.base import ConnectionRequest, LostPartitionsError, StreamUrl
from mlctl.services.stream.transports import transport_of
from tests.services.precomputed.servers import redis_server
from tests.services.stream.contract import numbered, numbers, read, send
from tests.support.broker_kill import Install, Member, Steps, answers_to
from tests.support.broker_steps import REDIS_STEPS, install_redis
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

T = TypeVar("T")

_ROUNDS = 3
_SENT = 60


def request_of(place: Callable[[str], StreamUrl]) -> ConnectionRequest:
    return ConnectionRequest(place("in"), "g", place("out"), place("dead"))


def check(request: ConnectionRequest, sent: int) -> None:
    """Nothing is lost and nothing came twice."""
    assert request.answers is not None
    assert request.dead is not None
    assert numbers(read(request.answers)) == [n for n in range(sent) if n % 10 != 3]
    assert numbers(read(request.dead)) == [n for n in range(sent) if n % 10 == 3]


def harass(request: ConnectionRequest, install: Install, steps: tuple[str, ...]) -> int:
    """Two members at a time, of which one dies at each step in turn; how many died."""
    chance = random.Random(7)
    kills = sent = 0
    fatal = set()
    for _ in range(_ROUNDS):
        for step in steps:
            send(request.source, numbered(sent, sent + _SENT))
            sent += _SENT
            doomed = Member(request, install, Steps(step, chance.randint(1, 4)))
            other = Member(request, install, Steps(chance.choice(steps), chance.randint(1, 6)))
            if doomed.died():
                kills += 1
                fatal.add(step)
            kills += other.died()
    assert not Member(request, install, Steps()).died()
    check(request, sent)
    assert fatal == {*steps}
    return kills


def test_redis_stream__members_killed__each_message_is_answered_once(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        request = request_of(lambda name: StreamUrl.parse(f"{server.url}?idle_s=0.1#{name}"))
        assert harass(request, install_redis, REDIS_STEPS) >= 30


class Restarted:
    """A broker that is killed and started again, on the same port with the same files."""

    def __init__(self, start: Callable[[], ExitStack]) -> None:
        self._start = start
        self._running = start()
        self.restarts = 0

    def restart(self) -> None:
        self._running.close()
        self._running = self._start()
        self.restarts += 1

    def close(self) -> None:
        self._running.close()


def start_redis(folder: Path, port: int) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(
        redis_server(folder, port, "--appendonly", "yes", "--appendfsync", "always")
    )
    return stack


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[tuple[Restarted, ConnectionRequest]]:
    (port,) = free_ports(1)
    broker = Restarted(lambda: start_redis(tmp_path, port))
    address = f"redis://127.0.0.1:{port}/0?idle_s=1"
    try:
        yield broker, request_of(lambda name: StreamUrl.parse(f"{address}#{name}"))
    finally:
        broker.close()


class Patient:
    """Repeats what the broker could not do, as the engine does."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    def __call__(self, act: Callable[[], T]) -> T:
        while True:
            assert time.monotonic() < self._deadline, "it never came back"
            try:
                return act()
            except MlctlError as error:
                assert error.code is ErrorCode.BROKER_UNAVAILABLE


def test_stream__broker_restarted_under_load__continues(
    restarted: tuple[Restarted, ConnectionRequest],
) -> None:
    broker, request = restarted
    send(request.source, numbered(0, 4000))
    for place in (request.answers, request.dead):
        assert place is not None
        send(place, [])
    committed = 0

    def restarts() -> None:
        for mark in range(300, 1500, 300):
            wait_until(partial(lambda mark: committed >= mark, mark), what="progress")
            broker.restart()

    thread = threading.Thread(target=restarts)
    patient = Patient()
    with transport_of(request.source).open_connection(request) as link:
        thread.start()
        while sum(patient(link.lag).values()):
            found = patient(lambda: link.poll(20, 0.1))
            with suppress(LostPartitionsError):
                patient(partial(link.commit, answers_to(found)))
                committed += len(found)
        thread.join(PATIENCE_SECONDS)
    assert broker.restarts == 4
    check(request, 4000)
