"""Ends a worker whose supervisor is gone, in order: nobody would replace it, or ever stop it.

It would keep the ports as well, so that the server could not be started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

_INTERVAL_SECONDS = 1.0
logger = logging.getLogger("mlctl.service")


def end_in_order() -> None:
    """As the supervisor would have asked for."""
    os.kill(os.getpid(), signal.SIGTERM)


class ParentWatch:
    """Looks every second whether this process has another parent now, and then calls `end` once.

    `born_to` is the first one: it may be gone before the watch begins, as models load for long.
    Made on the loop; looks until `stop`.
    """

    def __init__(
        self,
        born_to: int,
        parent: Callable[[], int] = os.getppid,
        end: Callable[[], None] = end_in_order,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._parent = parent
        self._end = end
        self._interval = interval
        self._born_to = born_to
        self._timer = self._loop.call_later(interval, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._parent() == self._born_to:
            self._timer = self._loop.call_later(self._interval, self._look)
            return
        logger.critical("the supervisor is gone; this worker answers what is open and ends")
        self._end()
