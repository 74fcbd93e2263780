"""Resolve paths: names from a manifest become paths only through `resolve_inside`."""

from __future__ import annotations

import stat
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError

_MAX_PATH = 512
_MAX_PART_BYTES = 255  # limit of a file name on common file systems
# Characters that another layer could decode into a path outside the folder: percent-encoding, path
# parameters, backslashes, drive letters.
_FORBIDDEN = frozenset('\\%;:*?"<>|')


def check_relative(name: str) -> str:
    """Return `name` if it is a plain relative POSIX path; raise PATH_UNSAFE with the reason."""
    reason = _why_unsafe(name)
    if reason is not None:
        raise MlctlError(ErrorCode.PATH_UNSAFE, f"path {name!r} is rejected: {reason}")
    return name


def _why_unsafe(name: str) -> str | None:
    if not name or len(name) > _MAX_PATH:
        return f"it has {len(name)} characters, expected 1 to {_MAX_PATH}"
    if name.startswith("/"):
        return "it is absolute"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return "it contains a control character"
    if forbidden := sorted(_FORBIDDEN.intersection(name)):
        return f"it contains {forbidden[0]!r}"
    if any("\ud800" <= char <= "\udfff" for char in name):
        return "it is not text"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "it has an empty, '.' or '..' part"
    if any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        return f"it has a part of more than {_MAX_PART_BYTES} bytes"
    return None


def resolve_inside(root: Path, name: str) -> Path:
    """Return the path of `name` under `root`; PATH_UNSAFE for links and paths outside `root`.

    The file need not exist; no existing part of the path may be a link.
    """
    check_relative(name)
    path = root
    for part in name.split("/"):
        path = path / part
        reject_link(path, name)
    if not path.resolve().is_relative_to(root.resolve()):
        raise MlctlError(ErrorCode.PATH_UNSAFE, f"path {name!r} is rejected: it leaves the bundle")
    return path


def reject_link(path: Path, name: str) -> None:
    """Raise PATH_UNSAFE if `path` exists as a symbolic link, hard link or special file."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(status.st_mode):
        reason = "it is a symbolic link"
    elif stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        reason = "it is a hard link (another name exists for the same file)"
    elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        reason = "it is neither a file nor a directory"
    else:
        return
    raise MlctlError(ErrorCode.PATH_UNSAFE, f"path {name!r} is rejected: {reason}")
