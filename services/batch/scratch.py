"""A folder for temporary files that does not outlive its process for long, however that ends.

A killed process cannot clean up: the folder is locked while its process lives, and the next process
on the machine removes unlocked ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "mlctl-bundle-"


class Scratch:
    """A new folder, held until `close`."""

    def __init__(self) -> None:
        # Held before it has the name that others look for.
        made = Path(tempfile.mkdtemp(prefix=".mlctl-"))
        self._held = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self.folder = made.rename(made.with_name(PREFIX + made.name.removeprefix(".mlctl-")))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)
        os.close(self._held)


def sweep() -> int:
    """Remove the folders of processes that are gone; how many there were."""
    return sum(map(_removed, Path(tempfile.gettempdir()).glob(f"{PREFIX}*")))


def _removed(folder: Path) -> bool:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except OSError:  # gone, or another user's
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return False
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            return True
        return False
    finally:
        os.close(descriptor)
