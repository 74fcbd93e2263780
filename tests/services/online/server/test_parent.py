from __future__ import annotations

import asyncio

from services.online.server.parent import ParentWatch
from tests.support.listening import until


async def test_parent_watch__supervisor_dies__ends_the_worker_once() -> None:
    looks: list[int] = []
    ends: list[str] = []

    def parent() -> int:
        looks.append(7 if len(looks) < 3 else 1)
        return looks[-1]

    ParentWatch(7, parent, lambda: ends.append("end"), 0.001)
    await until(lambda: ends)
    assert (looks, ends) == ([7, 7, 7, 1], ["end"])


async def test_parent_watch__supervisor_died_before__ends_the_worker() -> None:
    ends: list[str] = []

    ParentWatch(7, lambda: 1, lambda: ends.append("end"), 0.001)
    await until(lambda: ends)
    assert ends == ["end"]


async def test_parent_watch__stopped__checks_no_more() -> None:
    looks: list[int] = []

    def parent() -> int:
        looks.append(len(looks))  # another one each time
        return looks[-1]

    watch = ParentWatch(7, parent, lambda: looks.append(-1), 0.001)
    watch.stop()
    other = ParentWatch(7, lambda: 7, lambda: None, 0.001)
    end = asyncio.get_running_loop().time() + 0.02
    await until(lambda: asyncio.get_running_loop().time() > end)
    other.stop()
    assert not looks
