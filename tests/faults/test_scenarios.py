"""Faults as files: each of `scenarios/` is played against one real server of two workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fault_clients import (
    answered_by,
    ask_grpc,
    ask_http,
    http_request,
    open_channel,
)
from tests.support.fault_steps import VOCABULARY
from tests.support.fault_world import Served, World, serve
from tests.support.faultkit import play
from tests.support.serving import Server
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))
# Their steps are taken by an operating system of ours, which needs a compiler.
NEED_FAULTY_OS = {"disk-full", "clock-step"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("served")) as ready:
        yield ready


def test_whoever_is_asked_tells_the_sum_of_all(served: Served) -> None:
    """The first one here: it counts from nothing."""
    processes: set[str] = set()
    count = 0
    while len(processes) < 2:
        answer = httpx.post(f"{served.server.url}/v2/models/text/infer", **http_request("one"))
        assert answer.status_code == 200
        processes.add(answered_by(answer))
        count += 1
        assert count < 10_000
    line = 'mlctl_requests_total{model="text",outcome="ok",protocol="http"}'
    wait_until(lambda: all(served.metric(line) == count for _ in range(8)), what="equal sums")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_fault_loses_nothing(path: Path, served: Served, tmp_path: Path) -> None:
    if served.system is None and path.stem in NEED_FAULTY_OS:
        pytest.skip("there is no C compiler (cc) to make the clock and the disk that fail")
    world = World(served, tmp_path)
    try:
        play(VOCABULARY, path, world)
    finally:
        world.close()


def test_a_stop_answers_what_is_in_flight_over_connections_that_were_kept(served: Served) -> None:
    """The last one here: it ends the server."""
    server = served.server
    with ThreadPoolExecutor(12) as pool, ExitStack() as connections:
        channels = [open_channel(server) for _ in range(4)]
        for channel in channels:
            connections.callback(channel.close)
            ask_grpc(channel, "one")
        client, *kept = [connections.enter_context(httpx.Client()) for _ in range(7)]
        for each in kept:
            assert ask_http(each, server, "one").status_code == 200
        lasting = pool.submit(ask_until_closed, client, server)
        enough = threading.Event()
        connections.callback(enough.set)

        def ask_slowly(ask: Callable[[], Any]) -> list[Any]:
            answers = [ask()]
            while not enough.is_set():
                answers.append(ask())
            return answers

        asks = [partial(ask_grpc, channel, "slow") for channel in channels]
        asks += [partial(ask_http, each, server, "slow") for each in kept]
        slow = [pool.submit(ask_slowly, ask) for ask in asks]
        wait_until(lambda: served.metric("mlctl_queue_rows") > 0, what="they wait for the model")
        enough.set()
        server.process.send_signal(signal.SIGTERM)
        for asking in slow:
            for answer in asking.result(PATIENCE_SECONDS):
                assert not isinstance(answer, httpx.Response) or answer.status_code == 200
        assert lasting.result(PATIENCE_SECONDS) > 0
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def ask_until_closed(client: httpx.Client, server: Server) -> int:
    """Ask again and again over one connection until the server says that it closes it."""
    count = 0
    while True:
        answer = ask_http(client, server, "one")
        assert answer.status_code == 200
        count += 1
        if answer.headers.get("connection") == "close":
            return count
