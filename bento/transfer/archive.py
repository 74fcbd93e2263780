"""The list of a Bento's files with their digests, and the import of a Bento into the store.

An import is verified first: every file matches the list, there is no other file, and the bundles
are those that the Bento's label names.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlctl.bundle.manifest import FileEntry, Name, Sha256
from mlctl.bundle.verify import check_files, describe_file, walk
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import scratch_directory, write_atomic
from mlctl.core.home import bento_home
from mlctl.services.layout.bento_layout import read_contents
from mlctl.services.layout.bento_store import (
    CONTENT_LABEL,
    DIGEST_LABEL,
    LATEST,
    BentoInfo,
    read_bento,
)

MAX_LISTING_BYTES = 8 << 20
# Bytecode that a server wrote when it ran from the store.
_BYTECODE = "__pycache__"


class Listing(BaseModel):
    """A Bento's tag, its digests, and each of its files sorted by path.

    `content_digest` is null for a Bento whose labels have none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    name: Name
    version: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?$")]
    digest: Sha256
    content_digest: Sha256 | None
    files: tuple[FileEntry, ...]

    @property
    def tag(self) -> str:
        """NAME:VERSION."""
        return f"{self.name}:{self.version}"

    def canonical(self) -> bytes:
        """Return the bytes that are written; `archive_digest` is their sha256."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def archive_digest(self) -> str:
        """The hex sha256 of the canonical form, which covers every byte of the Bento."""
        return hashlib.sha256(self.canonical()).hexdigest()


def list_files(bento: BentoInfo) -> Listing:
    """List the files of a Bento with their digests; INVALID_INPUT if mlctl did not build it."""
    digest = bento.labels.get(DIGEST_LABEL)
    if digest is None or read_contents(bento.source).digest != digest:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the Bento {bento.tag} was not built by mlctl",
            "Build it with `mlctl build NAME`.",
        )
    name, _, version = bento.tag.partition(":")
    files = tuple(
        describe_file(bento.path, each) for each in sorted(walk(bento.path, skip=_BYTECODE))
    )
    content = bento.labels.get(CONTENT_LABEL)
    return Listing(name=name, version=version, digest=digest, content_digest=content, files=files)


def parse_listing(content: bytes) -> Listing:
    """Parse a listing; MANIFEST_INVALID unless it is in canonical form."""
    try:
        if len(content) > MAX_LISTING_BYTES:
            raise _damaged("it is too large")
        found = Listing.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _damaged(str(first["msg"])) from error
    paths = [entry.path for entry in found.files]
    if found.canonical() != content or paths != sorted(set(paths)):
        raise _damaged("it is not in canonical form")
    if found.version == LATEST:  # in a store, the file of that name holds the newest version
        raise _damaged(f"{LATEST!r} is not a version")
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    if both := sorted(folders.intersection(paths)):
        raise _damaged(f"{both[0]!r} is a file and a folder")
    return found


def check_room(listing: Listing, folder: Path) -> None:
    """Raise DISK_FULL, before anything is written, unless the listed files fit at `folder`."""
    needed, free = sum(entry.size for entry in listing.files), shutil.disk_usage(folder).free
    if needed > free:
        raise MlctlError(
            ErrorCode.DISK_FULL,
            f"{listing.tag} needs {needed} bytes, and {free} bytes are free at {folder}",
        )


@contextmanager
def incoming() -> Iterator[Path]:
    """Yield an empty folder in the file system of the store, for a Bento's files."""
    with scratch_directory(bento_home()) as folder:
        yield folder


def import_bento(root: Path, listing: Listing, *, force: bool = False) -> BentoInfo:
    """Verify the Bento in the folder `root` of `incoming` and move it to the store.

    DIGEST_MISMATCH if its bundles are not those of its label. A Bento of the same tag in the store
    stays if it has the same files. With other files, `force` replaces it; INVALID_INPUT without.
    """
    _check(root, listing)
    bento = read_bento(root)
    if bento.tag != listing.tag or bento.labels.get(DIGEST_LABEL) != listing.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"the Bento is {bento.tag}, the list names {listing.tag}"
        )
    if read_contents(bento.source).digest != listing.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"the bundles of {bento.tag} are not those of its label"
        )
    location = bento_home() / "bentos" / listing.name / listing.version
    if location.exists() and not force:
        _require_same(location, listing)
        return BentoInfo(bento.tag, location, bento.labels)
    location.parent.mkdir(parents=True, exist_ok=True)
    with incoming() as old:
        if location.exists():
            location.rename(old / "replaced")
        root.chmod(0o755)
        root.rename(location)
    write_atomic(location.parent / LATEST, listing.version.encode())
    return BentoInfo(bento.tag, location, bento.labels)


def _require_same(location: Path, listing: Listing) -> None:
    try:
        _check(location, listing)
    except MlctlError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the store has a Bento {listing.tag} with other files: {error.message}",
            "--force replaces it with the pulled one.",
        ) from error


def _check(root: Path, listing: Listing) -> None:
    check_files(root, listing.files, set(walk(root, skip=_BYTECODE)), "the list")


def _damaged(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.MANIFEST_INVALID, f"the list of the files is not valid: {reason}")
