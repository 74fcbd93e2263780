"""A worker ends when its model or its event loop hangs, and only then."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from mlctl.services.online.server.watchdog import EXIT_CODE, Watchdog
from tests.support.listening import until
from tests.support.wait import PATIENCE_SECONDS


def test_watchdog__model_hangs__ends_after_a_farewell() -> None:
    called: list[str] = []
    live = True

    async def main() -> None:
        nonlocal live
        Watchdog(
            lambda: live,
            lambda: called.append("farewell"),
            0.5,
            os.getppid(),
            end=lambda: called.append("end"),
        )
        deadline = asyncio.get_running_loop().time() + 0.3
        await until(lambda: asyncio.get_running_loop().time() > deadline)
        assert called == []
        live = False
        await until(lambda: len(called) == 2)

    asyncio.run(main())
    assert called == ["farewell", "end"]


def test_watchdog__event_loop_hangs__ends_without_a_farewell() -> None:
    ended = threading.Event()
    called: list[str] = []

    async def main() -> None:
        Watchdog(lambda: True, lambda: called.append("f"), 0.2, os.getppid(), end=ended.set)
        assert ended.wait(PATIENCE_SECONDS)  # blocks the loop, as a model that runs on it

    asyncio.run(main())
    assert called == []


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
    checks: list[int] = []
    called: list[str] = []

    def parent() -> int:
        checks.append(7 if len(checks) < before else 1)
        return checks[-1]

    watchdog = Watchdog(
        lambda: True,
        lambda: called.append("farewell"),
        0.1,
        7,
        parent=parent,
        end=lambda: called.append("end"),
        orphaned=lambda: called.append("orphaned"),
    )
    await until(lambda: called)
    end = asyncio.get_running_loop().time() + 0.2
    await until(lambda: asyncio.get_running_loop().time() > end)
    watchdog.stop()
    assert (checks, called) == ([7] * before + [1], ["orphaned"])


async def test_watchdog__stopped__does_not_look_at_the_supervisor() -> None:
    checks: list[int] = []

    def parent() -> int:
        checks.append(len(checks))  # another one each time
        return checks[-1]

    watchdog = Watchdog(lambda: True, lambda: None, 0.1, 7, parent=parent, orphaned=lambda: None)
    watchdog.stop()
    end = asyncio.get_running_loop().time() + 0.2
    await until(lambda: asyncio.get_running_loop().time() > end)
    assert not checks


@pytest.mark.slow
def test_end_process__called__prints_each_threads_stack() -> None:
    code = (
        "from mlctl.services.online.server import watchdog\n"
        "def stuck(): watchdog.end_process()\n"
        "stuck()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CODE
    assert "in stuck" in done.stderr
