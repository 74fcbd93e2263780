import asyncio
import os
import sys
import threading
from functools import partial

import pytest

from mlctl.services.online.batching.model_executor import ModelThread


def test_submit__several_calls__run_in_order_and_report_to_the_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        thread = ModelThread(loop)
        told: list[tuple[object, bool]] = []
        end = asyncio.Event()

        def done(result: int | BaseException) -> None:
            told.append((result, threading.current_thread() is threading.main_thread()))
            if len(told) == 3:
                end.set()

        def work(value: int) -> int:
            assert threading.current_thread().daemon
            return 6 // value

        for value in (1, 0, 2):
            thread.submit(partial(work, value), done)
        await asyncio.wait_for(end.wait(), 20)
        assert [type(result) for result, _ in told] == [int, ZeroDivisionError, int]
        assert all(here for _, here in told)
        thread.stop()

    asyncio.run(main())


def test_submit__event_loop_has_ended__thread_continues() -> None:
    gate, ended = threading.Event(), threading.Event()

    async def main() -> None:
        thread = ModelThread(asyncio.get_running_loop())
        thread.submit(partial(gate.wait, 20), lambda _: None)
        thread.submit(ended.set, lambda _: None)

    asyncio.run(main())
    gate.set()
    assert ended.wait(20)  # the thread has outlived the loop


@pytest.mark.skipif(sys.platform != "linux", reason="only there has a thread its own priority")
@pytest.mark.parametrize("forbidden", [False, True])
def test_model_thread__on_linux__has_a_lower_priority_than_the_loop(
    forbidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: int) -> None:
        raise PermissionError

    if forbidden:
        monkeypatch.setattr(os, "setpriority", forbid)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        thread, found = ModelThread(loop), loop.create_future()
        thread.submit(lambda: os.getpriority(os.PRIO_PROCESS, 0), found.set_result)
        usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        expected = usual if forbidden else min(usual + 3, 19)
        assert await asyncio.wait_for(found, 20) == expected
        thread.stop()

    asyncio.run(main())
