"""Lookups that never fail: while the store is down, every key counts as missing.

A quick reader is called on the event loop. Others run on threads, with a timeout; missing keys are
cached for a second, and a store that failed is not queried for a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mlctl.core.clock import Clock
from mlctl.services.precomputed.base import GenerationReader, PrecomputedRow, StoreError

_THREADS = 4
# Pause after a failure, or after this many consecutive timeouts.
_PAUSE_SECONDS = 1.0
_MAX_TIMEOUTS = 3
# How long missing keys are cached, and how many.
_ABSENT_SECONDS = 1.0
_ABSENT_KEYS = 65_536
logger = logging.getLogger("mlctl.precomputed")


class FoundRows(NamedTuple):
    """The row of each key or None; `down` if the store was unavailable."""

    rows: list[PrecomputedRow | None]
    down: bool = False


class Lookup:
    """Looks keys up with one reader, for one event loop; `timeout` is in seconds."""

    def __init__(self, reader: GenerationReader, timeout: float, clock: Clock) -> None:
        self.quick = reader.quick
        self._reader = reader
        self._timeout = timeout
        self._clock = clock
        self._threads = None if reader.quick else ThreadPoolExecutor(_THREADS, "mlctl-precomputed")
        self._absent: dict[str, float] = {}
        self._timeouts = 0
        self._paused_until = 0.0
        self._is_down = False

    def find(self, keys: Sequence[str]) -> FoundRows:
        """Look keys up with a quick reader."""
        if self._is_down and self._clock.monotonic() < self._paused_until:
            return _nothing(keys)
        try:
            rows = self._reader.get(keys)
        except StoreError as error:
            self._pause(error)
            return _nothing(keys)
        if self._is_down:
            self._resume()
        return FoundRows(rows)

    async def find_on_thread(self, keys: Sequence[str]) -> FoundRows:
        """Look keys up on a thread."""
        now = self._clock.monotonic()
        if now < self._paused_until:
            return _nothing(keys)
        absent = self._absent
        wanted = [key for key in keys if absent.get(key, 0.0) <= now]
        if not wanted:
            return FoundRows([None] * len(keys))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                rows = await loop.run_in_executor(self._threads, self._reader.get, wanted)
        except TimeoutError:
            self._timeouts += 1
            if self._timeouts >= _MAX_TIMEOUTS:
                self._pause("lookups time out")
            return _nothing(keys)
        except StoreError as error:
            self._pause(error)
            return _nothing(keys)
        self._timeouts = 0
        if self._is_down:
            self._resume()
        found = dict(zip(wanted, rows, strict=True))
        self._remember_absent([key for key, row in found.items() if row is None])
        return FoundRows([found.get(key) for key in keys])

    def close(self) -> None:
        """Stop the threads and close the reader."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._reader.close()

    def _remember_absent(self, keys: Sequence[str]) -> None:
        if len(self._absent) + len(keys) > _ABSENT_KEYS:
            self._absent.clear()
        until = self._clock.monotonic() + _ABSENT_SECONDS
        self._absent.update(dict.fromkeys(keys, until))

    def _pause(self, reason: object) -> None:
        self._paused_until = self._clock.monotonic() + _PAUSE_SECONDS
        self._timeouts = 0
        if not self._is_down:
            self._is_down = True
            logger.warning("precomputed predictions are unavailable, the model answers: %s", reason)

    def _resume(self) -> None:
        self._is_down = False
        logger.info("precomputed predictions are available again")


def _nothing(keys: Sequence[str]) -> FoundRows:
    return FoundRows([None] * len(keys), down=True)
