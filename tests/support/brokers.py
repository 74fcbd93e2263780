"""Brokers that stall."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stalled(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """The broker takes nothing, and goes on after `seconds`."""
    os.kill(process.pid, signal.SIGSTOP)
    # Its threads stop one by one, and on a busy machine not at once.
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    timer = threading.Timer(seconds, os.kill, (process.pid, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()
