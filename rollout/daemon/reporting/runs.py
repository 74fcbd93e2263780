"""Report rollouts to MLflow, in a process: `python -m rollout.daemon.reporting.runs NAME`.

MLflow takes seconds to load and hundreds of megabytes to keep, so the daemon (`RunKeeper`) has
it done elsewhere, and only while there is something to tell. It never waits for it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from bundle.clock import Clock
from bundle.errors import MlctlError
from rollout.daemon.reporting.cursors import EventCursors
from rollout.daemon.reporting.projection import Projection
from rollout.domain.spec import check_name
from rollout.journal import paths
from rollout.journal.journal import Journal

_PASS_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 600.0


class RunKeeper:
    """Keeps the teller running while something is owed, with pauses that double on failure."""

    def __init__(
        self, name: str, command: Sequence[str], cursors: EventCursors, clock: Clock
    ) -> None:
        self._name = name
        self._command = tuple(command)
        self._cursors = cursors
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE
        self._not_before = 0.0

    def poll(self) -> None:
        """Start a teller if one is needed; does not wait."""
        if not self._command or self._running() or self._clock.monotonic() < self._not_before:
            return
        if self._cursors.owed(self._name):
            # Its words go to the daemon's log; it carries the daemon's token, and ends with it.
            command = [*self._command, self._name]
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """End the teller: the next daemon's goes on where it was."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _running(self) -> bool:
        if self._child is None:
            return False
        code = self._child.poll()
        if code is None:
            return True
        self._child = None
        self._pause = FIRST_PAUSE if code == 0 else min(2 * self._pause, LONGEST_PAUSE)
        self._not_before = self._clock.monotonic() + self._pause
        return False


def main(name: str) -> int:
    """Tell the rollouts of `name` until there is none left; 0 at once if another process does."""
    from registry.runs import MlflowRuns

    path = paths.directory(check_name(name)) / "runs.lock"
    with path.open("a") as lock, Journal(paths.journal()) as journal:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        with EventCursors(paths.journal()) as cursors:
            projection = Projection(name, journal, cursors, MlflowRuns())
            try:
                while projection.advance():
                    time.sleep(_PASS_SECONDS)
            except MlctlError as error:
                print(f"the run was not written: {error.message}", file=sys.stderr)
                return error.spec.exit_code
    return 0


if __name__ == "__main__":
    os.nice(10)  # what serves and what judges come first
    sys.exit(main(sys.argv[1]))
