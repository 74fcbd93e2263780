"""Seal a directory into a bundle, and verify a bundle before anything in it is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlctl.bundle.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    parse_manifest,
)
from mlctl.bundle.tensors import MissingValues, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file, write_atomic
from mlctl.core.paths import check_relative, reject_link, resolve_inside


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """A bundle whose files all match its manifest."""

    root: Path
    manifest: Manifest
    digest: str

    @property
    def name(self) -> str:
        """The model's name."""
        return self.manifest.name

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the model, including its transform."""
        return self.manifest.signature

    @property
    def missing(self) -> MissingValues:
        """The inputs whose values may be missing."""
        return self.manifest.missing

    def path(self, name: str) -> Path:
        """Return the path of a listed file; FILE_MISSING if the manifest does not list it."""
        if all(entry.path != name for entry in self.manifest.files):
            raise MlctlError(ErrorCode.FILE_MISSING, f"the bundle has no file {name!r}")
        return resolve_inside(self.root, name)


def seal(root: Path, manifest: Manifest) -> VerifiedBundle:
    """List every file under `root` in `manifest`, write it there, and return the bundle.

    Any `files` already in `manifest` are replaced. The manifest is written last and
    atomically, so a directory without one is an unfinished bundle.
    """
    entries = tuple(
        describe_file(root, name) for name in sorted(walk(root)) if name != MANIFEST_NAME
    )
    sealed = Manifest.model_validate(
        {**manifest.model_dump(), "files": [entry.model_dump() for entry in entries]}
    )
    write_atomic(root / MANIFEST_NAME, sealed.canonical())
    return VerifiedBundle(root, sealed, sealed.digest)


def read_manifest(root: Path) -> Manifest:
    """Parse the manifest of the bundle at `root` without checking its files.

    Only its canonical bytes are accepted, so every changed byte is detected.
    """
    path = root / MANIFEST_NAME
    reject_link(path, MANIFEST_NAME)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MlctlError(
            ErrorCode.MANIFEST_INVALID,
            f"{root.name or root} is not a bundle: it has no file {MANIFEST_NAME}",
        ) from error
    manifest = parse_manifest(content)
    if content != manifest.canonical():
        raise MlctlError(
            ErrorCode.MANIFEST_INVALID, f"{MANIFEST_NAME}: it is not in canonical form"
        )
    return manifest


def verify(root: Path, expected_digest: str | None = None) -> VerifiedBundle:
    """Check every file of the bundle at `root`: size, sha256, nothing unlisted, no links.

    Raises the error of the first problem and names the path. With `expected_digest`, an intact
    bundle with another digest is DIGEST_MISMATCH.
    """
    manifest = read_manifest(root)
    if expected_digest is not None and manifest.digest != expected_digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH,
            f"the bundle's digest is {manifest.digest}, expected {expected_digest}",
        )
    check_files(root, manifest.files, set(walk(root)) - {MANIFEST_NAME}, "the manifest")
    return VerifiedBundle(root, manifest, manifest.digest)


def check_files(
    root: Path, entries: Collection[FileEntry], found: Collection[str], listing: str
) -> None:
    """Raise FILE_UNLISTED, FILE_MISSING or FILE_ALTERED unless `found` are the files of `entries`.

    `listing` names the list in messages.
    """
    if unlisted := sorted(set(found) - {entry.path for entry in entries}):
        raise MlctlError(ErrorCode.FILE_UNLISTED, f"file {unlisted[0]!r} is not in {listing}")
    for entry in entries:
        path = resolve_inside(root, entry.path)
        if not path.is_file():
            raise MlctlError(ErrorCode.FILE_MISSING, f"file {entry.path!r} is missing")
        size = path.stat().st_size
        if size != entry.size:
            raise MlctlError(
                ErrorCode.FILE_ALTERED,
                f"file {entry.path!r} has {size} bytes, {listing} has {entry.size}",
            )
        if sha256_file(path) != entry.sha256:
            raise MlctlError(
                ErrorCode.FILE_ALTERED, f"file {entry.path!r} does not have the sha256 of {listing}"
            )


def describe_file(root: Path, name: str) -> FileEntry:
    """Return the entry of the file `name` under `root`; PATH_UNSAFE for a name outside it."""
    path = resolve_inside(root, check_relative(name))
    return FileEntry(path=name, size=path.stat().st_size, sha256=sha256_file(path))


def walk(root: Path, *, skip: str = "") -> Iterator[str]:
    """Yield relative POSIX paths of all files under `root`; PATH_UNSAFE for links and the like.

    Folders named `skip` are left out.
    """
    for directory, subdirectories, files in os.walk(root, onerror=_raise):
        subdirectories[:] = [name for name in subdirectories if name != skip]
        for entry in (*subdirectories, *files):
            path = Path(directory, entry)
            name = path.relative_to(root).as_posix()
            reject_link(path, name)
            if entry in files:
                yield name


def _raise(error: OSError) -> None:
    raise error
