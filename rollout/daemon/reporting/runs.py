"""Report rollouts to MLflow, in a process: `python -m mlctl.rollout.daemon.reporting.runs NAME`.

MLflow takes seconds to load and hundreds of megabytes to keep, so the process runs only while a
rollout is not reported to its end.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from mlctl.core.errors import MlctlError
from mlctl.core.garbage import rare_collection
from mlctl.rollout.daemon.reporting.outbox import run_command
from mlctl.rollout.daemon.reporting.projection import Projection
from mlctl.rollout.domain.spec import check_name
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal

_PASS_SECONDS = 2.0


class RunsSink:
    """Runs the reporting `command` while a rollout of the deployment `name` is not reported."""

    name = "runs"

    def __init__(
        self, name: str, command: Sequence[str], journal: Journal, stop: threading.Event
    ) -> None:
        self._deployment = name
        self._command = tuple(command)
        self._journal = journal
        self._stop = stop

    def pending(self) -> str | None:
        return "" if self._command and self._journal.unreported(self._deployment) else None

    def deliver(self, after: int) -> Iterator[int]:
        run_command([*self._command, self._deployment], "", self._stop)
        yield after

    def close(self) -> None:
        """Nothing is open: a command that runs ends with `stop`."""


def main(name: str) -> int:
    """Report the rollouts of `name` until none is left; 0 at once if another process does."""
    from mlctl.registry.runs import MlflowRuns

    path = paths.directory(check_name(name)) / "runs.lock"
    with path.open("a") as lock, Journal(paths.journal()) as journal:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        projection = Projection(name, journal, MlflowRuns())
        try:
            while projection.advance():
                time.sleep(_PASS_SECONDS)
        except MlctlError as error:
            print(f"the run was not written: {error.message}", file=sys.stderr)
            return error.spec.exit_code
    return 0


if __name__ == "__main__":
    os.nice(10)  # the servers and the gates come first
    with rare_collection():
        ended = main(sys.argv[1])
    sys.exit(ended)
