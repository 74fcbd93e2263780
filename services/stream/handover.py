"""One run takes the place of another on the same machine, at the position where that one ended."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError

_RUN = (b"stream", b"run")


def take_over(pid: int, patience_s: float) -> bool:
    """Ask the run in process `pid` to end, and wait until it has committed what it had begun.

    Whether there was one. If it has ended already, its last commit is where another goes on.
    INVALID_INPUT if the process is no run of a stream, or not ours to end; JOB_RUNNING if it
    has not ended in `patience_s` seconds, and then it may still do so.
    """
    try:
        # A number may be another process's by the time it is used; a descriptor may not.
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        _check(pid)
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(patience_s * 1000):
            raise MlctlError(
                ErrorCode.JOB_RUNNING,
                f"process {pid} was asked to end and has not done so in {patience_s:g} s",
                "Nothing is lost: start this run again when that one has ended.",
            )
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"process {pid} is another user's: it cannot be ended"
        ) from error
    finally:
        os.close(process)
    return True


def _check(pid: int) -> None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return
    # Of a process that has ended and that nobody has waited for there are none.
    if any(words) and not {*_RUN} <= {*words}:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"process {pid} is no mlctl stream run", "Look with ps."
        )
