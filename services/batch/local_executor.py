"""Scoring with the threads of this process: one reads ahead, the others share the session."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from services.batch.base import Chunk, UnitResult

# Chunks read or scored ahead of the commit, beside one for each thread.
AHEAD = 2


class LocalExecutor:
    """Runs `score` in `threads` threads; results come in the order of the chunks."""

    def __init__(self, score: Callable[[Chunk], UnitResult], threads: int) -> None:
        self._score = score
        self._threads = threads

    def results(self, chunks: Iterable[Chunk]) -> Generator[UnitResult, None, None]:
        """A result for each chunk; the first error of reading or scoring ends it.

        Chunks are taken in a thread of their own. At most threads + 2 are in memory. Closed before
        its end it waits for no unit that is being scored.
        """
        pool = ThreadPoolExecutor(self._threads, "mlctl-score")
        try:
            yield from read_ahead(
                chunks, self._threads + AHEAD, lambda chunk: pool.submit(self._score, chunk)
            )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read_ahead(
    chunks: Iterable[Chunk], ahead: int, submit: Callable[[Chunk], Future[UnitResult]]
) -> Generator[UnitResult, None, None]:
    """What comes of what `submit` makes of each chunk, in order; at most `ahead` in memory."""
    with closing(_Reader(chunks, ahead, submit)) as reader:
        while (future := reader.next()) is not None:
            result = future.result()
            reader.taken()
            yield result


class _Reader:
    """Reads chunks ahead in its thread, and hands each to `submit`."""

    def __init__(
        self,
        chunks: Iterable[Chunk],
        ahead: int,
        submit: Callable[[Chunk], Future[UnitResult]],
    ) -> None:
        self._chunks = chunks
        self._submit = submit
        self._free = threading.Semaphore(ahead)
        self._futures: queue.SimpleQueue[Future[UnitResult] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="mlctl-read", daemon=True)
        self._thread.start()

    def next(self) -> Future[UnitResult] | None:
        """What comes of the next chunk; None after the last one."""
        return self._futures.get()

    def taken(self) -> None:
        """A result was taken: another chunk may be read."""
        self._free.release()

    def close(self) -> None:
        """Read no further; waits for the thread."""
        self._closed = True
        self._free.release()
        self._thread.join()

    def _read(self) -> None:
        try:
            self._free.acquire()
            for chunk in self._chunks:
                self._futures.put(self._submit(chunk))
                self._free.acquire()
                if self._closed:
                    return
        except BaseException as error:  # noqa: BLE001 - it is the caller's, who waits for it
            failed: Future[UnitResult] = Future()
            failed.set_exception(error)
            self._futures.put(failed)
        finally:
            self._futures.put(None)
