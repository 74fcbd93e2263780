"""Killing a batch at random moments: real processes, SIGKILL, and the same job again.

The moments come from a seeded generator and lie within what an undisturbed run takes, so that
they hit reading, scoring, commits and the start, on a fast machine and on a busy one.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support.wait import PATIENCE_SECONDS

_PRELOADED = [
    "aiobotocore.session",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "s3fs",
    "onnxruntime",
    "mlctl.services.model.scorer",
    "mlctl.services.batch.job",
    "mlctl.services.batch.sinks",
    "mlctl.services.batch.sources",
    "s3fs",
]

# A job: scores the input in a folder into its output, and returns when that is complete.
Job = Callable[[Path], None]


class Killer:
    """Runs jobs in processes of their own; `kills` counts those that died of it.

    `module` is where the jobs are: a process is forked with all of it loaded, for to load it
    each time would take longer than the jobs do.
    """

    def __init__(self, seed: int, module: str) -> None:
        self.kills = 0
        self._seconds = 0.0
        self._random = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*_PRELOADED, module])

    def undisturbed(self, job: Job, folder: Path) -> float:
        """Run `job` to its end; the seconds that took, without the start of the process."""
        assert not self._attempt(job, folder, None), "nobody killed it"
        return self._seconds

    def harass(self, job: Job, folder: Path, longest: float, most: int) -> int:
        """Kill `job` again and again, at most `most` times, until it completes; how many times.

        Each kill comes at most `longest` seconds after the process began to work.
        """
        before = self.kills
        while self.kills - before < most:
            if not self._attempt(job, folder, self._random.uniform(0.0, longest)):
                return self.kills - before
            self.kills += 1
        self.undisturbed(job, folder)
        return self.kills - before

    def harass_once(self, job: Job, folder: Path, longest: float) -> bool:
        """Run `job`, and kill it within `longest` seconds; return whether it completed before."""
        if not self._attempt(job, folder, self._random.uniform(0.0, longest)):
            return True
        self.kills += 1
        return False

    def _attempt(self, job: Job, folder: Path, delay: float | None) -> bool:
        """Run `job`; whether it was killed before its end, `delay` seconds after its start."""
        here, there = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(job, folder, there))
        process.start()
        there.close()
        with here:
            assert here.poll(PATIENCE_SECONDS), "it did not begin"
            assert here.recv() == "begun"
            began = time.monotonic()
            process.join(PATIENCE_SECONDS if delay is None else delay)
            self._seconds = time.monotonic() - began
            process.kill()
            process.join()
            if process.exitcode == -9:
                return True
            assert process.exitcode == 0, "the job failed by itself"
            return False


def _work(job: Job, folder: Path, connection: Connection) -> None:
    connection.send("begun")
    job(folder)
