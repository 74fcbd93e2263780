"""Reading and writing files so that a crash leaves either the old content or the new."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 1 << 20
_SCRATCH = re.compile(r"\.scratch-(\d+)-")


def sha256_file(path: Path) -> str:
    """The hex sha256 of a file's content, read in pieces; a symbolic link is not followed."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_atomic(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content`: temporary file, fsync, rename, fsync of the directory."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(directory: Path) -> None:
    """Make renames and new names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """An empty directory in `parent`, gone with the block unless it was renamed.

    What killed processes left of theirs is removed first.
    """
    for path in parent.iterdir():
        match = _SCRATCH.match(path.name)
        if match and not _is_running(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f".scratch-{os.getpid()}-"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
