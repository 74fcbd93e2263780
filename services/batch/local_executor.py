"""`--executor local`: threads of this process take units, score and commit them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from mlctl.services.batch.job import Executor
from mlctl.services.batch.progress import Run
from mlctl.services.batch.scoring import PieceScorer
from mlctl.services.batch.units import Marker, Unit
from mlctl.services.batch.worker import Scoring, UnitWorker

_POLL_SECONDS = 0.2


def local_executor(threads: int | None) -> Executor:
    """Return the executor that scores with threads of this process."""

    def execute(scoring: Scoring, run: Run, units: Sequence[Unit]) -> None:
        worker = scoring.open()
        score_units(run, units, worker, usual_threads(worker.scorer, threads))

    return execute


def score_units(run: Run, units: Sequence[Unit], worker: UnitWorker, threads: int) -> None:
    """Commit `units`, `threads` at once at most; INTERRUPTED if the run is stopped before the end.

    Other errors end the run too. Units in progress then have the grace to finish, or are abandoned
    at once after an error.
    """
    waiting, busy = deque(units), set[Future[Marker]]()
    stop = run.control.stop
    at_once = min(threads, len(units))
    # A transform or a device takes one piece at a time, and leaves the cores for the rest.
    one_by_one = not worker.scorer.scorer.thread_safe
    ahead = one_by_one or worker.source.waits or worker.sink.waits
    idle = threading.Semaphore(threads if ahead else threads - at_once)
    pool = ThreadPoolExecutor(2 * threads, "mlctl-batch")  # for units, and for pieces of them
    worker = replace(worker, pool=pool, idle=idle, ahead=ahead)
    try:
        while busy or (waiting and not stop.is_set()):
            while waiting and len(busy) < at_once and not stop.is_set():
                unit = waiting.popleft()
                busy.add(pool.submit(run.patiently, lambda unit=unit: worker.process(unit)))
            done, busy = wait(busy, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                run.add(future.result())
                if not waiting and not ahead:
                    idle.release()
            if run.is_expired():
                break
    finally:
        worker.abandoned.set()
        pool.shutdown(wait=False, cancel_futures=True)
    if waiting or busy:
        raise run.interrupted()


def usual_threads(scorer: PieceScorer, threads: int | None) -> int:
    """Return how many units are in progress at once.

    All cores where the model runs in several threads at once; three for a device, so that one unit
    is read and one written while the device runs another; else one, as a transform holds Python's
    lock.
    """
    if threads is not None:
        return threads
    if scorer.scorer.thread_safe:
        return len(os.sched_getaffinity(0))
    return 3 if scorer.scorer.provider != "cpu" else 1
