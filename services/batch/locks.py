"""Let one job at a time write to an output of this machine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError


def lock_job(lock: Path, place: str) -> int:
    """Return a descriptor that locks `place` until it is closed, or its process ends.

    JOB_RUNNING if another process has it; an OSError if the file `lock` cannot be made.
    """
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise MlctlError(ErrorCode.JOB_RUNNING, f"another process writes to {place}") from error
    return descriptor
