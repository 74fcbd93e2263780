"""Every case of the zoo, and how the processes that judge them share the work."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import queue
import tempfile
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.outside.boosters import booster_cases
from tests.outside.case import Case
from tests.outside.estimators import estimator_cases
from tests.outside.judge import Outcome, Verdict, judge
from tests.outside.modules import module_cases
from tests.outside.pipelines import pipeline_cases
from tests.outside.results import Key, key_of
from tests.outside.texts import text_cases

# On a busy machine; a case takes two seconds of CPU time.
CASE_SECONDS = 900.0


def all_cases() -> list[Case]:
    """Return the cases of every group, in the order of the table."""
    return [
        *estimator_cases(),
        *pipeline_cases(),
        *booster_cases(),
        *module_cases(),
        *text_cases(),
    ]


def judge_here(case: Case) -> Outcome:
    """Judge a case in this process, without the log of the servers."""
    logging.disable(logging.CRITICAL)
    try:
        return judge(case)
    finally:
        logging.disable(logging.NOTSET)


def judge_all(cases: Sequence[Case], processes: int) -> Iterator[tuple[Key, Outcome]]:
    """Judge the cases in `processes`, and yield each outcome when it is there.

    A case that ends its process, or takes longer than CASE_SECONDS, has failed; a new process takes
    the next one.
    """
    waiting: queue.SimpleQueue[Key | None] = queue.SimpleQueue()
    for key in [*map(key_of, cases), *([None] * processes)]:
        waiting.put(key)
    found: queue.SimpleQueue[tuple[Key, Outcome] | None] = queue.SimpleQueue()
    for _ in range(processes):
        threading.Thread(target=_drive, args=(waiting, found), daemon=True).start()
    ended = 0
    while ended < processes:
        each = found.get()
        if each is None:
            ended += 1
        else:
            yield each


def _drive(
    waiting: queue.SimpleQueue[Key | None], found: queue.SimpleQueue[tuple[Key, Outcome] | None]
) -> None:
    """Give one process a case after the other."""
    worker: _Worker | None = None
    while (key := waiting.get()) is not None:
        worker = worker or _Worker()
        outcome = worker.ask(key)
        if outcome is None:
            outcome, worker = Outcome(Verdict.FAILED, worker.end()), None
        found.put((key, outcome))
    if worker is not None:
        worker.end()
    found.put(None)


class _Worker:
    """A process with a home and a registry of its own."""

    def __init__(self) -> None:
        # The libraries are loaded once, in the process that the others are forked from.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "mlflow.sklearn", "skops.io", "skl2onnx.convert"])
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._pipe.recv()

    def ask(self, key: Key) -> Outcome | None:
        """Return the outcome of a case; None if the process ended, or did not end."""
        try:
            self._pipe.send(key)
            if not self._pipe.poll(CASE_SECONDS):
                return None
            outcome: Outcome = self._pipe.recv()
        except (EOFError, ConnectionError):
            return None
        return outcome

    def end(self) -> str:
        """End the process; return how it had ended."""
        self._pipe.close()
        self._process.join(5)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            return f"it did not end within {CASE_SECONDS:.0f} seconds"
        return f"the process ended with {self._process.exitcode}"


def _work(pipe: Connection) -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    cases = {key_of(case): case for case in all_cases()}
    logging.disable(logging.CRITICAL)
    pipe.send(None)
    # torch reads all its ONNX functions for each export, which takes a second.
    once = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    # In memory, where there is such a place: each case writes some hundred small files durably.
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        tempfile.tempdir = str(memory)
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-zoo-") as home,
        patch.object(ONNXRegistry, "from_torchlib", once),
    ):
        os.environ[HOME_VARIABLE] = home
        os.environ.pop(TRACKING_VARIABLE, None)
        os.chdir(Path(home))
        while True:
            try:
                key = pipe.recv()
            except EOFError:
                return
            with contextlib.suppress(BrokenPipeError):
                pipe.send(judge(cases[key]))
