"""The thread that a model runs on, seen from an event loop.

It is a daemon: a run that never ends must not keep the process from ending, as a thread of
`concurrent.futures` would, which the interpreter joins at its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
Done = Callable[[_T | BaseException], None]
# The event loop goes first where both want the same core: it needs little time, and responses must
# not wait for the end of the model's time slice.
_NICER = 3


class ModelThread:
    """Runs one task after the other; results are delivered on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="mlctl-model", daemon=True).start()

    def submit(self, work: Callable[[], _T], done: Done[_T]) -> None:
        """Do `work`, then call `done` on the loop with its result, or with what it raised."""
        self._work.put((work, done))

    def stop(self) -> None:
        """End the thread after the submitted tasks."""
        self._work.put(None)

    def _run(self) -> None:
        _lower_priority()
        while (item := self._work.get()) is not None:
            work, done = item
            result: Any
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                result = error
            # On a closed loop no request waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(done, result)


def _lower_priority() -> None:
    """Lower this thread's priority, on systems with priorities per thread."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox may forbid it, and all works without
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)
