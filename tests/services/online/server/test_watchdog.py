"""A worker ends when its model or its event loop hangs, and only then."""

from __future__ import annotations

import asyncio
import os
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
            os.getppid(),
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
        Watchdog(lambda: True, lambda: told.append("f"), 0.2, os.getppid(), end=ended.set)
        assert ended.wait(PATIENCE_SECONDS)  # blocks the loop, as a model that runs on it

    asyncio.run(main())
    assert told == []


def test_watchdog__stopped_or_loop_closed__ends_nothing() -> None:
    ends: list[str] = []

    async def main(*, stop: bool) -> None:
        watchdog = Watchdog(
            lambda: True, lambda: None, 0.5, os.getppid(), end=lambda: ends.append("end")
        )
        if stop:
            watchdog.stop()

    asyncio.run(main(stop=True))
    asyncio.run(main(stop=False))
    for thread in threading.enumerate():
        if thread.name == "mlctl-watchdog":
            thread.join(PATIENCE_SECONDS)
    assert ends == []


@pytest.mark.parametrize("before", [0, 3], ids=["before the watch", "during the watch"])
async def test_watchdog__supervisor_dies__ends_the_worker_once(before: int) -> None:
    looks: list[int] = []
    told: list[str] = []

    def parent() -> int:
        looks.append(7 if len(looks) < before else 1)
        return looks[-1]

    watchdog = Watchdog(
        lambda: True,
        lambda: told.append("farewell"),
        0.1,
        7,
        parent=parent,
        end=lambda: told.append("end"),
        orphaned=lambda: told.append("orphaned"),
    )
    await until(lambda: told)
    end = asyncio.get_running_loop().time() + 0.2
    await until(lambda: asyncio.get_running_loop().time() > end)
    watchdog.stop()
    assert (looks, told) == ([7] * before + [1], ["orphaned"])


async def test_watchdog__stopped__does_not_look_at_the_supervisor() -> None:
    looks: list[int] = []

    def parent() -> int:
        looks.append(len(looks))  # another one each time
        return looks[-1]

    watchdog = Watchdog(lambda: True, lambda: None, 0.1, 7, parent=parent, orphaned=lambda: None)
    watchdog.stop()
    end = asyncio.get_running_loop().time() + 0.2
    await until(lambda: asyncio.get_running_loop().time() > end)
    assert not looks


@pytest.mark.slow
def test_end_process__called__prints_each_threads_stack() -> None:
    code = (
        "from services.online.server import watchdog\ndef stuck(): watchdog.end_process()\nstuck()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE
    assert "in stuck" in done.stderr
