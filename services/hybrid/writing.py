"""Write-back: the model's answers join the store, behind the back of those who wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bundle.errors import MlctlError
from services.hybrid.base import Row, Store, StoreError
from services.hybrid.meter import DROPPED, FAILED, WRITTEN, HybridMeter

# Rows that wait to be written; what comes on top is not stored this time.
_MOST_ROWS = 4096
logger = logging.getLogger("mlctl.hybrid")


class WriteBack:
    """Writes on one thread, in commits of what came while the last one ran."""

    def __init__(
        self,
        store: Store,
        digest: str,
        meter: HybridMeter,
        written: Callable[[Sequence[str]], None],
    ) -> None:
        self._store = store
        self._digest = digest
        self._meter = meter
        self._written = written
        self._waiting: dict[str, Row] = {}
        self._thread = ThreadPoolExecutor(1, "mlctl-write-back")
        self._task: asyncio.Task[None] | None = None
        self._told = False

    def put(self, rows: Sequence[Row]) -> None:
        """Store `rows` soon, or never if too many wait."""
        if len(self._waiting) + len(rows) > _MOST_ROWS:
            self._meter.wrote(DROPPED, len(rows))
            return
        self._waiting.update((row.key, row) for row in rows)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Write what waits, and end."""
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._thread.shutdown)
        self._store.close()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                rows, self._waiting = list(self._waiting.values()), {}
                try:
                    await loop.run_in_executor(
                        self._thread, self._store.write_back, self._digest, rows
                    )
                except (StoreError, MlctlError) as error:
                    self._meter.wrote(FAILED, len(rows))
                    if not self._told:
                        self._told = True
                        logger.warning("answers cannot be written back: %s", error)
                else:
                    self._told = False
                    self._meter.wrote(WRITTEN, len(rows))
                    self._written([row.key for row in rows])
        finally:
            self._task = None
