"""Each patch of a library changes what it is meant to change."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import bentoml
import click
import pytest
from circus.watcher import Watcher
from tornado.ioloop import IOLoop, PeriodicCallback
from uvicorn.config import HTTP_PROTOCOLS, LOOP_FACTORIES, Config

from mlctl.services.online.http.connection import accept_loop
from mlctl.services.online.http.connection.limits import LimitedProtocol
from mlctl.services.online.server.patches import (
    hide_tracebacks,
    inherited_listener,
    make_bento_app,
    replace_workers_in_containers,
    use_monotonic_clock,
    use_protocol,
    watch_workers,
)
from tests.support.wait import PATIENCE_SECONDS


async def app(_scope: object, _receive: object, _send: object) -> None:
    """Answer nothing."""


def test_use_protocol__configuration_without_choices__has_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocols: dict[str, Any] = HTTP_PROTOCOLS
    monkeypatch.setitem(protocols, "auto", protocols["auto"])
    monkeypatch.setitem(LOOP_FACTORIES, "auto", LOOP_FACTORIES["auto"])
    use_protocol(LimitedProtocol, f"{accept_loop.__name__}:loop_factory")
    config = Config(app, log_config=None)
    config.load()
    assert config.http_protocol_class is LimitedProtocol
    factory = config.get_loop_factory()
    assert factory is not None
    loop = factory()
    assert isinstance(loop, accept_loop.AcceptingLoop)
    loop.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_make_bento_app__any_service__has_no_timeout_middleware() -> None:
    class Empty:
        @bentoml.api
        def nothing(self) -> str:
            return ""

    decorate: Any = bentoml.service
    built: Any = make_bento_app(decorate(Empty), is_main=True)
    names = [each.cls.__name__ for each in built.user_middleware]
    assert names
    assert "TimeoutMiddleware" not in names


def test_inherited_listener__worker_command__is_its_descriptor() -> None:
    command = click.Command("worker", params=[click.Option(["--fd"], type=int)])
    with command.make_context("worker", ["--fd", "7"]):
        assert inherited_listener() == 7


def test_hide_tracebacks__uvicorn_logs_one__is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("uvicorn.error")
    before = list(log.filters)
    hide_tracebacks()
    try:
        log.error("Traceback (most recent call last): ...")
        log.error("Application startup failed.")
    finally:
        log.filters[:] = before
    assert [record.message for record in caplog.records] == ["Application startup failed."]


def test_replace_workers_in_containers__in_an_image__hides_that_from_bentoml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENTOML_CONTAINERIZED", "true")
    replace_workers_in_containers()
    assert "BENTOML_CONTAINERIZED" not in os.environ


def test_monotonic_clock__wall_clock_steps__tornado_timers_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(IOLoop, "time", IOLoop.time)
    use_monotonic_clock()
    wall = time.time

    async def look_three_times() -> None:
        looks = asyncio.Semaphore(0)
        periodic.callback = looks.release
        for _ in range(3):  # one was due when the clock stepped; the next ones come after it
            await asyncio.wait_for(looks.acquire(), PATIENCE_SECONDS)

    async def step_the_clock() -> None:
        periodic.start()
        for days in (0, 3, -400):
            monkeypatch.setattr(time, "time", lambda off=days * 86_400: wall() + off)
            await look_three_times()
        periodic.stop()

    periodic = PeriodicCallback(lambda: None, 1)
    asyncio.run(step_the_clock())


def test_watch_workers__supervisor_reaps_one__is_called_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics: list[str] = []
    ended: list[tuple[int, int]] = []
    watcher: Any = Watcher
    monkeypatch.setattr(
        Watcher, "notify_event", lambda _self, topic, _message: topics.append(topic)
    )
    watch_workers(lambda worker, exit_code: ended.append((worker, exit_code)))
    for topic in ("spawn", "reap"):
        watcher.notify_event(None, topic, {"process_pid": 7, "exit_code": -11})
    assert (topics, ended) == (["spawn", "reap"], [(7, -11)])
