"""Scoring in steps with a thread for each, for a model on a device of its own.

While the device runs one unit, the next is read, prepared and copied to it, and the last one is
made into a table: the device never waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from services.batch.base import Chunk, UnitResult
from services.batch.local_executor import read_ahead


class PipelineExecutor:
    """Runs `steps` one after the other over each chunk; results come in the chunks' order.

    The first takes a chunk, each other what the one before it made, the last makes a result.
    """

    def __init__(self, steps: tuple[Callable[[Any], Any], ...]) -> None:
        self._steps = steps

    def results(self, chunks: Iterable[Chunk]) -> Generator[UnitResult, None, None]:
        """A result for each chunk; the first error of reading or of a step ends it.

        Chunks are taken in a thread of their own. At most one for each step and one more are in
        memory. Closed before its end it waits for no unit that is under way.
        """
        pools = [
            ThreadPoolExecutor(1, f"mlctl-{getattr(step, '__name__', 'step')}")
            for step in self._steps
        ]

        def submit(chunk: Chunk) -> Future[UnitResult]:
            made: Future[Any] = pools[0].submit(self._steps[0], chunk)
            for pool, step in zip(pools[1:], self._steps[1:], strict=True):
                # Each thread takes its work in order, so none waits for what comes after it.
                made = pool.submit(partial(_then, step, made))
            return made

        try:
            yield from read_ahead(chunks, len(self._steps) + 1, submit)
        finally:
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def _then(step: Callable[[Any], Any], before: Future[Any]) -> object:
    return step(before.result())
