"""Keep all temporary files of a run in one folder, in memory where there is room: a pytest plugin.

Servers that tests kill leave files behind, and some libraries always do. This folder is the TMPDIR
of each process of a run, and is removed at its end unless a test failed. It is in memory because
profiles of the suite show its kernel time in the creation of files on a disk.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

MIN_FREE_BYTES = 4 << 30
MAX_AGE_SECONDS = 24 * 3600.0
_PREFIX = "mlctl-tests-"
_MEMORY = Path("/dev/shm")

_folder = pytest.StashKey[Path]()


def parent_folder() -> Path:
    """Return the file system in memory, or the usual folder where it is small or absent.

    Tests run programs that they write there, so it must allow that.
    """
    try:
        status = os.statvfs(_MEMORY)
    except OSError:
        return Path(tempfile.gettempdir())
    runs_programs = not status.f_flag & os.ST_NOEXEC
    has_room = status.f_bavail * status.f_frsize >= MIN_FREE_BYTES
    return _MEMORY if runs_programs and has_room else Path(tempfile.gettempdir())


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder in the main process; its workers inherit TMPDIR."""
    if hasattr(config, "workerinput"):
        return
    parent = parent_folder()
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another run removes it
            if time.time() - left.stat().st_mtime > MAX_AGE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    folder.chmod(0o711)  # PostgreSQL runs as another user in a folder of its own
    config.stash[_folder] = folder
    patch = pytest.MonkeyPatch()
    patch.setenv("TMPDIR", str(folder))
    patch.setattr(tempfile, "tempdir", None)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = session.config.stash.get(_folder, None)
    if folder is None or session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        return
    if any(folder.glob("pymp-*")):
        # multiprocessing removes its own folder when the process ends, with priority -100, and
        # prints a traceback if that is gone.
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.line(
            f"temporary files of this run, kept for a day: {config.stash[_folder]}"
        )
