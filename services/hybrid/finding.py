"""Looking keys up, whatever state the store is in: a store that is down only costs answers.

A quick reader is asked where the caller is. Others are asked on threads, with a limit of
time; keys that they do not have are remembered for a moment, as is that a store is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bundle.clock import Clock
from services.hybrid.base import Reader, Row, StoreError

_THREADS = 4
# A store that failed is left alone for so long; one that was late, only if it is so again.
_REST_SECONDS = 1.0
_LATE_TIMES = 3
_ABSENT_SECONDS = 1.0
_ABSENT_KEYS = 65_536
logger = logging.getLogger("mlctl.hybrid")


class Found(NamedTuple):
    """The row of each key or None; `down` if that is because the store could not be asked."""

    rows: list[Row | None]
    down: bool = False


class Finder:
    """Asks one reader. Belongs to one event loop; `timeout` is in seconds."""

    def __init__(self, reader: Reader, timeout: float, clock: Clock) -> None:
        self.quick = reader.quick
        self._reader = reader
        self._timeout = timeout
        self._clock = clock
        self._threads = None if reader.quick else ThreadPoolExecutor(_THREADS, "mlctl-hybrid")
        self._absent: dict[str, float] = {}
        self._late = 0
        self._rests_until = 0.0
        self._told = False

    def find(self, keys: Sequence[str]) -> Found:
        """Ask a quick reader."""
        if self._told and self._clock.monotonic() < self._rests_until:
            return _nothing(keys)
        try:
            rows = self._reader.get(keys)
        except StoreError as error:
            self._rest(error)
            return _nothing(keys)
        if self._told:
            self._recovered()
        return Found(rows)

    async def find_apart(self, keys: Sequence[str]) -> Found:
        """Ask a reader that takes its time."""
        now = self._clock.monotonic()
        if now < self._rests_until:
            return _nothing(keys)
        absent = self._absent
        wanted = [key for key in keys if absent.get(key, 0.0) <= now]
        if not wanted:
            return Found([None] * len(keys))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                rows = await loop.run_in_executor(self._threads, self._reader.get, wanted)
        except TimeoutError:
            self._late += 1
            if self._late >= _LATE_TIMES:
                self._rest("it does not answer in time")
            return _nothing(keys)
        except StoreError as error:
            self._rest(error)
            return _nothing(keys)
        self._late = 0
        if self._told:
            self._recovered()
        found = dict(zip(wanted, rows, strict=True))
        self._remember_absent([key for key, row in found.items() if row is None])
        return Found([found.get(key) for key in keys])

    def close(self) -> None:
        """Ask no more."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._reader.close()

    def _remember_absent(self, keys: Sequence[str]) -> None:
        if len(self._absent) + len(keys) > _ABSENT_KEYS:
            self._absent.clear()
        until = self._clock.monotonic() + _ABSENT_SECONDS
        self._absent.update(dict.fromkeys(keys, until))

    def _rest(self, reason: object) -> None:
        self._rests_until = self._clock.monotonic() + _REST_SECONDS
        self._late = 0
        if not self._told:
            self._told = True
            logger.warning("precomputed answers cannot be read, the model answers: %s", reason)

    def _recovered(self) -> None:
        self._told = False
        logger.info("precomputed answers can be read again")


def _nothing(keys: Sequence[str]) -> Found:
    return Found([None] * len(keys), down=True)
