"""Read and write files so that a crash leaves either the old or the new content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# The disk is full, or the quota or the maximum file size (`ulimit -f`) is reached.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CHUNK = 1 << 20
_SCRATCH = re.compile(r"\.scratch-(\d+)-")


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's content; OSError for a symbolic link."""
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


def check_writable(path: Path) -> None:
    """Raise the OSError that writing the file `path` would raise; leave nothing behind."""
    try:
        if path.exists():
            with path.open("ab"):
                pass
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error


def fsync_directory(directory: Path) -> None:
    """Make renames and new names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield an empty directory in `parent`, removed after the block unless it was renamed.

    Scratch directories of killed processes are removed first.
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


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold an advisory lock on the file `lock`; the kernel releases it if the process dies."""
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def settle(finished: Path, target: Path, whole: Callable[[Path], bool]) -> None:
    """Rename the directory `finished` to `target` unless `target` exists and is `whole`.

    A damaged `target` is replaced. Concurrent processes take turns.
    """
    with exclusive(target.parent / f".{target.name}.lock"):
        if not (target.is_dir() and whole(target)):
            replace_directory(finished, target)


def replace_directory(finished: Path, target: Path) -> None:
    """Rename the directory `finished` to `target`, and remove an existing `target`."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    finished.rename(target)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
