"""The files of a user's transform: found, limited, and copied when they are read.

The copy is named by its content. Loading, measuring and bundling always use
the copy, so an edit during a run changes nothing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from mlctl.bundle.manifest import TRANSFORM_NAME
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import scratch_directory, settle, sha256_file
from mlctl.core.home import state_dir
from mlctl.core.paths import check_relative

FILE_NAME = Path(TRANSFORM_NAME).name
MAX_BYTES = 64 << 20
MAX_FILES = 256

_HINT = "docs/transforms.md describes transforms, with an example."


def snapshot(path: Path) -> tuple[Path, str]:
    """Copy the transform at `path` to the state directory; return the copy and its sha256.

    INVALID_INPUT if it does not exist, contains links, or is too large for a bundle.
    """
    files = _files(path)
    store = state_dir("cache", "transforms")
    try:
        with scratch_directory(store) as scratch:
            for name, file in files.items():
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, scratch / name)
            sha256 = content_sha256(scratch)
            target = store / sha256
            scratch.chmod(0o755)
            settle(scratch, target, lambda there: content_sha256(there) == sha256)
            return target, sha256
    except OSError as error:
        raise invalid(f"the transform at {path} cannot be copied: {error.strerror}") from error


def content_sha256(root: Path) -> str:
    """Return the hex sha256 over the relative names and contents of all files under `root`."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    listing = {path.relative_to(root).as_posix(): sha256_file(path) for path in files}
    return hashlib.sha256(canonical_json(listing)).hexdigest()


def invalid(message: str, hint: str = _HINT) -> MlctlError:
    """Return INVALID_INPUT about a transform."""
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)


def _files(path: Path) -> dict[str, Path]:
    """Return the files of the transform at `path` by their relative names."""
    if path.is_file():
        return {FILE_NAME: path}
    if not path.is_dir():
        raise invalid(f"no transform at {path}")
    files: dict[str, Path] = {}
    size = 0
    for file in _walk(path):
        files[_checked_name(file.relative_to(path).as_posix())] = file
        size += file.stat().st_size
        if size > MAX_BYTES or len(files) > MAX_FILES:
            raise invalid(
                f"the folder {path} holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB",
                f"Give a folder that holds only {FILE_NAME} and the data that it reads.",
            )
    if FILE_NAME not in files:
        raise invalid(f"the folder {path} has no {FILE_NAME}")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files under `folder` except hidden ones and bytecode caches."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise invalid(f"{path} is a link or a special file, which a bundle cannot contain")
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def _checked_name(name: str) -> str:
    try:
        return check_relative(name)
    except MlctlError as error:
        raise invalid(error.message, "Rename the file.") from error
