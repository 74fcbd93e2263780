"""Stop a worker whose supervisor has died, gracefully.

Otherwise it would never be replaced or stopped, and would keep the ports from a new server.
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
    """Stop this process as the supervisor would."""
    os.kill(os.getpid(), signal.SIGTERM)


class ParentWatch:
    """Checks every second whether the parent process changed, and then calls `end` once.

    `born_to` is the first one: it may be gone before the watch begins, as models load for long.
    Created on the loop; checks until `stop`.
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
        self._timer = self._loop.call_later(interval, self._check)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._parent() == self._born_to:
            self._timer = self._loop.call_later(self._interval, self._check)
            return
        logger.critical("the supervisor is gone; this worker answers what is open and ends")
        self._end()
