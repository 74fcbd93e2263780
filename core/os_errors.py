"""Translate errors of the operating system into messages with the path and a hint."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import NO_SPACE
from mlctl.core.home import BENTO_HOME_VARIABLE, HOME_VARIABLE, home_path

_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = (os.strerror(errno.ENOSPC), "database or disk is full")
_WRONG_KIND = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST})


def translate_os_error(error: OSError) -> MlctlError | None:
    """Return the error to show for `error`, or None if it has no general explanation.

    A missing file is not translated: code that opens a user's file reports what the file is for,
    and any other missing file is a defect of mlctl.
    """
    name = error.filename
    if error.errno == errno.EFBIG:
        return MlctlError(
            ErrorCode.DISK_FULL,
            "a file reached the maximum file size" + ("" if name is None else f": {name}"),
            "Raise the limit with `ulimit -f unlimited`, then run the same command again.",
        )
    if error.errno in NO_SPACE:
        where = "" if name is None else f" for {name}"
        return MlctlError(ErrorCode.DISK_FULL, f"there is no space left{where}")
    if name is None or error.errno not in _NO_ACCESS | _WRONG_KIND:
        return None
    path = Path(os.fsdecode(name))
    advice = "Move it away"
    if error.errno in _NO_ACCESS:
        nearest = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
        advice = f"Check the owner and permissions with `ls -ld {shlex.quote(str(nearest))}`"
    return MlctlError(
        ErrorCode.PATH_INACCESSIBLE,
        f"cannot access {path}: {os.strerror(error.errno).lower()}",
        f"{advice}, or {_alternative(path)}.",
    )


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether `error`, or one that caused it, is that of a full disk.

    SQLite and MLflow report it in the text of errors of their own.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return True
        if any(text in str(error) for text in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _alternative(path: Path) -> str:
    """Return how to use another path instead of `path`."""
    bentos = os.environ.get(BENTO_HOME_VARIABLE)
    homes = {HOME_VARIABLE: home_path()} | ({BENTO_HOME_VARIABLE: Path(bentos)} if bentos else {})
    for variable, home in homes.items():
        if path.absolute() == home.absolute() or home.absolute() in path.absolute().parents:
            return f"set {variable} to a folder that you can write to"
    return "use another path"
