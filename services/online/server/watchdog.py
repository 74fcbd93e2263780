"""Ends a worker that hangs, or whose supervisor has died.

A model's run cannot be cancelled, and a hanging event loop answers no liveness probe, so a thread
watches both: the supervisor starts another worker. Without a supervisor a worker would never be
replaced or stopped, and would keep the ports from a new server, so it stops gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

EXIT_CODE = 70
_LONGEST_INTERVAL = 1.0
# A check that is this many intervals late means that the whole process was stopped, so nothing is
# known about the loop in that time.
_STOOD_STILL = 5.0
# The time for a working loop to fail the open requests, and then to send these responses.
_FAREWELL_SECONDS = 2.0
_SEND_SECONDS = 0.1
logger = logging.getLogger("mlctl.watchdog")


def end_process() -> None:
    """Show where every thread is, and end: no cleanup could be waited for."""
    faulthandler.dump_traceback(all_threads=True)
    logging.shutdown()
    os._exit(EXIT_CODE)


def stop_process() -> None:
    """Stop this process as the supervisor would."""
    os.kill(os.getpid(), signal.SIGTERM)


class Watchdog:
    """Checks several times per `limit` seconds, from a thread of its own, until `stop`.

    It calls `farewell` on `loop` and then `end`, once, when `live` is false or the loop has
    done nothing for `limit` seconds; and `orphaned`, once, when `parent` does not return
    `supervisor`, which may be gone before the watch begins. Made on the loop.
    """

    def __init__(
        self,
        live: Callable[[], bool],
        farewell: Callable[[], None],
        limit: float,
        supervisor: int,
        *,
        parent: Callable[[], int] = os.getppid,
        end: Callable[[], None] = end_process,
        orphaned: Callable[[], None] = stop_process,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._live = live
        self._farewell = farewell
        self._limit = limit
        self._interval = min(_LONGEST_INTERVAL, limit / 5)
        self._supervisor: int | None = supervisor
        self._parent = parent
        self._end = end
        self._orphaned = orphaned
        self._stopped = threading.Event()
        self._beat = time.monotonic()
        threading.Thread(target=self._watch, name="mlctl-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        last_check = time.monotonic()
        while not self._stopped.wait(self._interval):
            now = time.monotonic()
            late = now - last_check > _STOOD_STILL * self._interval
            last_check = now
            try:
                self._loop.call_soon_threadsafe(self._note_beat)
            except RuntimeError:
                return  # a loop that was closed hangs no more
            if self._supervisor is not None and self._parent() != self._supervisor:
                self._supervisor = None
                logger.critical("the supervisor is gone; this worker answers what is open and ends")
                self._orphaned()
            if late:
                self._beat = now
            elif now - self._beat > self._limit:
                logger.critical("the event loop hangs for %.0f s; this worker ends", self._limit)
                self._end()
                return
            elif not self._live():
                logger.critical("the model hangs; this worker ends")
                self._say_farewell()
                self._end()
                return

    def _note_beat(self) -> None:
        self._beat = time.monotonic()

    def _say_farewell(self) -> None:
        sent = threading.Event()

        def send() -> None:
            try:
                self._farewell()
            finally:  # the answers go out in the loop's next turns
                self._loop.call_later(_SEND_SECONDS, sent.set)

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(send)
        sent.wait(_FAREWELL_SECONDS)
