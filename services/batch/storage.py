"""Where the files of a job are: a folder of this machine, or a prefix in a bucket.

A file appears under its name complete or not at all: on a disk by fsync and rename, in a bucket
because an upload is atomic.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import fsync_directory
from mlctl.services.batch.locations import open_system, scheme_of, without_password
from mlctl.services.batch.transient_errors import translate_errors

STATE = "_mlctl"
BUCKET_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory")
# Objects read at once.
_READERS = 16
_TEMPORARY = f"{STATE}/incomplete"


class LocalStorage:
    """Files by their names below a folder, which `create` makes; names use "/"."""

    def __init__(self, root: Path) -> None:
        self.shown = str(root)
        self._root = root
        if root.exists() and not root.is_dir():
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{root} is not a folder")

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders directly in `folder`."""
        path = self._root / folder
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def find(self) -> list[str]:
        """Return the names of all files, at any depth."""
        return [
            path.relative_to(self._root).as_posix()
            for path in self._root.rglob("*")
            if path.is_file()
        ]

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of those files that exist."""
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self._root / name).read_bytes()
        return found

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file, which appears as `name` at the end of the block; not after an error."""
        path = self._root / name
        self._make_folder(self._root / _TEMPORARY)
        self._make_folder(path.parent)
        descriptor, temporary = tempfile.mkstemp(
            dir=self._root / _TEMPORARY, prefix=f"{path.name}."
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the files that exist."""
        paths = [self._root / name for name in names]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths if path.parent.is_dir()}:
            fsync_directory(folder)

    def clean(self, part: str) -> None:
        """Delete temporary files of killed runs with `part` in their names."""
        for name in self.names(_TEMPORARY):
            if part in name:
                (self._root / _TEMPORARY / name).unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and make its name durable."""
        if not folder.exists():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            fsync_directory(folder.parent)


class BucketStorage:
    """The same below a prefix of an object store, through fsspec."""

    def __init__(self, location: str) -> None:
        self.shown = without_password(location).rstrip("/")
        self._system, path = open_system(location)
        self._root = path.rstrip("/")

    def names(self, folder: str = "") -> list[str]:
        path = f"{self._root}/{folder}".rstrip("/")
        with self._translated():
            self._system.invalidate_cache()
            try:
                found = self._system.ls(path, detail=False)
            except FileNotFoundError:
                return []
        names = (str(each).rstrip("/").rpartition("/")[2] for each in found)
        return sorted(name for name in names if name)

    def find(self) -> list[str]:
        with self._translated():
            self._system.invalidate_cache()
            return [str(name)[len(self._root) + 1 :] for name in self._system.find(self._root)]

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        with self._translated(), ThreadPoolExecutor(_READERS, "mlctl-markers") as pool:
            contents = pool.map(self._content, names)
            return {
                name: each for name, each in zip(names, contents, strict=True) if each is not None
            }

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        # Without a name, so that a killed process leaves nothing behind.
        with tempfile.TemporaryFile() as file:
            yield file
            file.flush()
            file.seek(0)
            with self._translated():
                self._system.put_file(f"/dev/fd/{file.fileno()}", self._path(name))

    def delete(self, names: Sequence[str]) -> None:
        with self._translated():
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._system.rm_file(self._path(name))

    def clean(self, part: str) -> None:
        """Uploads leave no temporary objects."""

    def _content(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            content: bytes = self._system.cat_file(self._path(name))
            return content
        return None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(self.shown, ErrorCode.SINK_UNAVAILABLE)


Storage = LocalStorage | BucketStorage


def open_storage(location: str) -> Storage:
    """Return the storage at a path or a bucket's URL."""
    scheme = scheme_of(location)
    if scheme in (None, "file"):
        return LocalStorage(Path(location.removeprefix("file://")))
    assert scheme in BUCKET_SCHEMES
    return BucketStorage(location)
