"""A worker ends when its model or its event loop hangs, and only then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from services.online.server.watchdog import EXIT_CODE, Watchdog
from tests.support.listening import until
from tests.support.wait import PATIENCE_SECONDS


def test_watchdog__model_hangs__ends_after_a_farewell() -> None:
    told: list[str] = []
    live = True

    async def main() -> None:
        nonlocal live
        Watchdog(
            lambda: live,
            lambda: told.append("farewell"),
            0.5,
            end=lambda: told.append("end"),
        )
        looks = asyncio.get_running_loop().time() + 0.3
        await until(lambda: asyncio.get_running_loop().time() > looks)
        assert told == []
        live = False
        await until(lambda: len(told) == 2)

    asyncio.run(main())
    assert told == ["farewell", "end"]


def test_watchdog__event_loop_hangs__ends_without_a_farewell() -> None:
    ended = threading.Event()
    told: list[str] = []

    async def main() -> None:
        Watchdog(lambda: True, lambda: told.append("f"), 0.2, end=ended.set)
        assert ended.wait(PATIENCE_SECONDS)  # blocks the loop, as a model that runs on it

    asyncio.run(main())
    assert told == []


def test_watchdog__stopped_or_loop_closed__ends_nothing() -> None:
    ends: list[str] = []

    async def main(*, stop: bool) -> None:
        watchdog = Watchdog(lambda: True, lambda: None, 0.5, end=lambda: ends.append("end"))
        if stop:
            watchdog.stop()

    asyncio.run(main(stop=True))
    asyncio.run(main(stop=False))
    for thread in threading.enumerate():
        if thread.name == "mlctl-watchdog":
            thread.join(PATIENCE_SECONDS)
    assert ends == []


@pytest.mark.slow
def test_end_process__called__prints_each_threads_stack() -> None:
    code = (
        "from services.online.server import watchdog\ndef stuck(): watchdog.end_process()\nstuck()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE
    assert "in stuck" in done.stderr
