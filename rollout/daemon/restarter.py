"""The parent of a deployment's daemon: `python -m mlctl.rollout.daemon.restarter NAME`.

It starts the daemon, and starts it again when it dies or no longer ticks, after a pause that
doubles. A daemon that exits by itself (stopped, or another one runs) ends it too.
It holds nothing that could be lost: if it dies as well, the next command starts both again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from mlctl.core.backoff import pause_after
from mlctl.rollout.journal import paths

STUCK_SECONDS = 15.0
_CHECK_SECONDS = 1.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
# After this uptime a death starts the pauses between restarts from the shortest again.
_STEADY_SECONDS = 60.0


class Watcher:
    """Keeps one daemon running until it exits by itself or `stop`."""

    def __init__(self, command: list[str], heartbeat: Path) -> None:
        self._command = command
        self._heartbeat = heartbeat
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: pass it on and exit."""
        self._stop = True
        if self._child is not None:
            self._child.terminate()

    def run(self) -> int:
        """Watch; return 0 once the daemon has exited by itself or after `stop`."""
        failures = 0
        while not self._stop:
            begun = time.monotonic()
            if self._watch() == 0:
                break
            if time.monotonic() - begun > _STEADY_SECONDS:
                failures = 0
            failures += 1
            if not self._stop:
                time.sleep(pause_after(failures, _FIRST_PAUSE, _LONGEST_PAUSE))
        return 0

    def _watch(self) -> int:
        """Start the daemon and wait for its end; its exit code."""
        begun = time.time()
        self._child = subprocess.Popen(self._command)
        if self._stop:  # the signal came before there was a child
            self._child.terminate()
        while True:
            try:
                return self._child.wait(_CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                if seconds_unseen(self._heartbeat, since=begun) > STUCK_SECONDS:
                    print("the daemon no longer ticks: it is started again", flush=True)
                    self._child.kill()


def seconds_unseen(heartbeat: Path, since: float = 0.0) -> float:
    """Seconds since a daemon last ticked, or since `since` (wall clock) if that is later.

    0 if none ever did and `since` is not given.
    """
    try:
        last = max(heartbeat.stat().st_mtime, since)
    except FileNotFoundError:
        last = since or time.time()
    return max(0.0, time.time() - last)


def main(name: str) -> int:
    """Watch the daemon of `name`."""
    command = [sys.executable, "-P", "-m", "mlctl.rollout.daemon.daemon", name]
    watcher = Watcher(command, paths.heartbeat(name))
    signal.signal(signal.SIGTERM, watcher.stop)
    return watcher.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
