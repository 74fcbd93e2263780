"""A Bento on its way: all its files with a list of their digests, and back into a store.

What is taken in is proved first: every file is the one of the list, no other is there, and
the bundles are the ones that the Bento's label names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundle.errors import ErrorCode, MlctlError
from bundle.files import scratch_directory, sha256_file, write_atomic
from bundle.home import bento_home
from bundle.manifest import FileEntry, Name, Sha256, canonical_json
from bundle.paths import check_relative, reject_link, resolve_inside
from services.runtime.bento_layout import read_contents
from services.runtime.bento_store import CONTENT_LABEL, DIGEST_LABEL, LATEST, BentoInfo, read_bento

LISTING_NAME = "listing.json"
BENTO_FOLDER = "bento"
MAX_LISTING_BYTES = 8 << 20
# What a server left there when it ran from the store.
_LEFT_OUT = "__pycache__"


class Listing(BaseModel):
    """A Bento's tag, the digests that it stands for, and each of its files sorted by path.

    `content_digest` is null for a Bento of an mlctl that did not tell it.
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
        """The bytes that are written, and that `parcel_digest` is taken of."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def parcel_digest(self) -> str:
        """The hex sha256 of the canonical form: it stands for every byte of the Bento."""
        return hashlib.sha256(self.canonical()).hexdigest()


def list_files(bento: BentoInfo) -> Listing:
    """What there is to send of a Bento; INVALID_INPUT for one that mlctl did not build."""
    digest = bento.labels.get(DIGEST_LABEL)
    if digest is None or read_contents(bento.source).digest != digest:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the Bento {bento.tag} is not one that mlctl built",
            "Build it with `mlctl build NAME`.",
        )
    name, _, version = bento.tag.partition(":")
    files = tuple(
        FileEntry(path=each, size=(bento.path / each).stat().st_size, sha256=_sha256(bento, each))
        for each in sorted(_walk(bento.path))
    )
    content = bento.labels.get(CONTENT_LABEL)
    return Listing(name=name, version=version, digest=digest, content_digest=content, files=files)


def parse_listing(content: bytes) -> Listing:
    """The listing in `content`; MANIFEST_INVALID unless it is one, in canonical form."""
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
    if found.version == LATEST:  # in a store that file says which version is the newest
        raise _damaged(f"{LATEST!r} is not a version")
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    if both := sorted(folders.intersection(paths)):
        raise _damaged(f"{both[0]!r} is a file and a folder")
    return found


def check_room(listing: Listing, folder: Path) -> None:
    """DISK_FULL, before anything is written, unless the listed files fit where `folder` is."""
    needed, free = sum(entry.size for entry in listing.files), shutil.disk_usage(folder).free
    if needed > free:
        raise MlctlError(
            ErrorCode.DISK_FULL,
            f"the files of {listing.tag} are {needed} bytes; {free} are free at {folder}",
        )


def copy_files(source: Path, listing: Listing, target: Path) -> None:
    """Copy the listed files of the Bento at `source` to the folder `target`.

    FILE_MISSING, or FILE_ALTERED for one that has another size.
    """
    for entry in listing.files:
        file, copy = resolve_inside(source, entry.path), target / entry.path
        if not file.is_file():
            raise _missing(entry)
        if file.stat().st_size != entry.size:  # so that no more is written than was said
            raise _altered(entry)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def check_files(root: Path, listing: Listing) -> None:
    """FILE_ALTERED, FILE_MISSING or FILE_UNLISTED unless `root` has exactly the listed files."""
    if unlisted := sorted(set(_walk(root)) - {entry.path for entry in listing.files}):
        raise MlctlError(ErrorCode.FILE_UNLISTED, f"file {unlisted[0]!r} is not in the list")
    for entry in listing.files:
        path = resolve_inside(root, entry.path)
        if not path.is_file():
            raise _missing(entry)
        if path.stat().st_size != entry.size or sha256_file(path) != entry.sha256:
            raise _altered(entry)


@contextmanager
def incoming() -> Iterator[Path]:
    """An empty folder in the file system of the store, for a Bento's files."""
    with scratch_directory(bento_home()) as folder:
        yield folder


def take_in(root: Path, listing: Listing, *, force: bool = False) -> BentoInfo:
    """Move the Bento in the folder `root` of `incoming` to the store, once it is proved.

    DIGEST_MISMATCH if its bundles are not the ones of its label. One with the same tag in the
    store stays if it has the same files; with others it is replaced by `force`, or else
    INVALID_INPUT is raised.
    """
    check_files(root, listing)
    bento = read_bento(root)
    if bento.tag != listing.tag or bento.labels.get(DIGEST_LABEL) != listing.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"the Bento is {bento.tag}, not {listing.tag} of the list"
        )
    if read_contents(bento.source).digest != listing.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"the bundles of {bento.tag} are not the ones of its label"
        )
    place = bento_home() / "bentos" / listing.name / listing.version
    if place.exists() and not force:
        _require_same(place, listing)
        return BentoInfo(bento.tag, place, bento.labels)
    place.parent.mkdir(parents=True, exist_ok=True)
    with incoming() as old:
        if place.exists():
            place.rename(old / "replaced")
        root.chmod(0o755)
        root.rename(place)
    write_atomic(place.parent / LATEST, listing.version.encode())
    return BentoInfo(bento.tag, place, bento.labels)


def _require_same(place: Path, listing: Listing) -> None:
    try:
        check_files(place, listing)
    except MlctlError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the store has a Bento {listing.tag} with other files: {error.message}",
            "--force replaces it by the one that is pulled.",
        ) from error


def _walk(root: Path) -> Iterator[str]:
    """The relative paths of all files but bytecode; links and special files are refused."""
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name != _LEFT_OUT]
        for entry in (*subdirectories, *files):
            path = Path(directory, entry)
            name = path.relative_to(root).as_posix()
            reject_link(path, name)
            if entry in files:
                yield check_relative(name)


def _sha256(bento: BentoInfo, name: str) -> str:
    return sha256_file(resolve_inside(bento.path, name))


def _missing(entry: FileEntry) -> MlctlError:
    return MlctlError(ErrorCode.FILE_MISSING, f"file {entry.path!r} is missing")


def _altered(entry: FileEntry) -> MlctlError:
    return MlctlError(ErrorCode.FILE_ALTERED, f"file {entry.path!r} is not the one of the list")


def _damaged(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.MANIFEST_INVALID, f"{LISTING_NAME}: {reason}")
