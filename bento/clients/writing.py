"""A generated client on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from bundle.paths import check_relative


def write_files(folder: Path, files: Mapping[str, str | bytes], *, force: bool = False) -> None:
    """Write `files` into `folder`; INVALID_INPUT if it has others, unless `force`.

    With `force` files of the same names are replaced, and all others left alone.
    """
    if not force and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{folder} exists and is no empty folder",
            "Name another one with --out, or overwrite its files with --force.",
        )
    for name, content in files.items():
        check_relative(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.encode() if isinstance(content, str) else content)
