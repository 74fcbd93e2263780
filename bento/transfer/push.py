"""Sending a Bento to a folder or an OCI image layout, and taking one in from there, proved.

MLflow is a folder as well, on its way: the caller logs and fetches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bento.transfer.archive import (
    BENTO_FOLDER,
    LISTING_NAME,
    MAX_LISTING_BYTES,
    Listing,
    check_room,
    copy_files,
    incoming,
    list_files,
    parse_listing,
    take_in,
)
from bento.transfer.oci import read_layout, write_layout
from bundle.errors import ErrorCode, MlctlError
from bundle.files import replace_directory, scratch_directory, write_atomic
from services.runtime.bento_store import BentoInfo

Fetch = Callable[[Path], Path]


class Destination(Enum):
    """Where a Bento may be sent."""

    FOLDER = "folder"
    MLFLOW = "mlflow"
    OCI = "oci"


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """A place to send to or take from: `where` is a path, or a model; `tag` picks one of many."""

    place: Destination
    where: str = ""
    tag: str | None = None

    @property
    def path(self) -> Path:
        """The folder, in full."""
        return Path(self.where).absolute()


def parse_target(text: str) -> TransferTarget:
    """What --push names: `mlflow`, `oci:PATH`, `folder:PATH`, or a folder as it is."""
    if text == Destination.MLFLOW.value:
        return TransferTarget(Destination.MLFLOW)
    kind, _, rest = text.partition(":")
    if kind not in (Destination.OCI.value, Destination.FOLDER.value):
        kind, rest = Destination.FOLDER.value, text
    if not rest:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} names no folder",
            "Write it as FOLDER, oci:FOLDER or mlflow.",
        )
    return TransferTarget(Destination(kind), rest)


def parse_source(text: str) -> TransferTarget | None:
    """What `mlctl pull` names if it is a Bento: PLACE:WHERE or PLACE:WHERE#TAG; else None."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {place.value for place in Destination}:
        return None
    where, _, tag = rest.partition("#")
    if not where:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} names no Bento",
            "Write it as folder:PATH, oci:PATH#NAME:VERSION or mlflow:MODEL.",
        )
    return TransferTarget(Destination(kind), where, tag or None)


def push_folder(folder: Path, bento: BentoInfo) -> Path:
    """Copy the Bento to NAME-VERSION in `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    listing = list_files(bento)
    target = folder / f"{listing.name}-{listing.version}"
    with scratch_directory(folder) as scratch:
        copy_files(bento.path, listing, scratch / BENTO_FOLDER)
        write_atomic(scratch / LISTING_NAME, listing.canonical())
        scratch.chmod(0o755)
        replace_directory(scratch, target)
    return target


def push_oci(folder: Path, bento: BentoInfo) -> tuple[str, Listing]:
    """Put the Bento into the OCI image layout `folder`; the manifest's digest."""
    listing = list_files(bento)
    return write_layout(folder, bento, listing), listing


def pull_folder(folder: Path, *, force: bool = False) -> BentoInfo:
    """Take in the Bento that `push_folder` copied to `folder`; for `force` see `take_in`."""
    return pull_with(lambda _: folder, force=force)


def pull_with(fetch: Fetch, *, force: bool = False) -> BentoInfo:
    """Take in what `fetch` gets, given a folder for it: a listing, and the files beside it."""
    with incoming() as scratch:
        (scratch / "got").mkdir()
        found = fetch(scratch / "got")
        path = found / LISTING_NAME
        if not path.is_file():
            raise MlctlError(
                ErrorCode.BENTO_NOT_FOUND,
                f"there is no Bento at {found}: it has no {LISTING_NAME}",
                "Name the folder NAME-VERSION that `mlctl build --push` made.",
            )
        with path.open("rb") as file:
            listing = parse_listing(file.read(MAX_LISTING_BYTES + 1))
        check_room(listing, scratch)
        copy_files(found / BENTO_FOLDER, listing, scratch / "taken")
        return take_in(scratch / "taken", listing, force=force)


def pull_oci(folder: Path, tag: str | None, *, force: bool = False) -> BentoInfo:
    """Take in the Bento `tag`, or the only one, of an OCI image layout."""
    with incoming() as scratch:
        target = scratch / "taken"
        target.mkdir()
        listing = read_layout(folder, tag, target)
        return take_in(target, listing, force=force)
