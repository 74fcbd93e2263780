"""Push a Bento to a folder, an OCI image layout or MLflow, and pull it from there, verified."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from bento.transfer.archive import (
    BENTO_FOLDER,
    LISTING_NAME,
    MAX_LISTING_BYTES,
    Listing,
    check_room,
    copy_files,
    import_bento,
    incoming,
    list_files,
    parse_listing,
)
from bento.transfer.oci import read_layout, write_layout
from bundle.errors import ErrorCode, MlctlError
from bundle.files import replace_directory, scratch_directory, sha256_file, write_atomic
from services.runtime.bento_store import BentoInfo, find_bento

if TYPE_CHECKING:
    from registry.catalog import PublishedModel
    from registry.mlflow_catalog import MlflowCatalog

Fetch = Callable[[Path], Path]

# The folder of a run's artifacts that holds the Bentos of its bundle.
_RUN_FOLDER = "bentos"


class Destination(Enum):
    """The kinds of storage for Bentos."""

    FOLDER = "folder"
    MLFLOW = "mlflow"
    OCI = "oci"


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """Where to push to or pull from: `location` is a path or a model; `tag` picks one of many."""

    destination: Destination
    location: str = ""
    tag: str | None = None

    @property
    def path(self) -> Path:
        """The absolute path of the folder."""
        return Path(self.location).absolute()


@dataclass(frozen=True, slots=True)
class Pushed:
    """A pushed Bento: `mlctl pull` takes `reference`; `archive_digest` covers every byte.

    `manifest_digest` is that of the OCI manifest, `uri` the artifact in MLflow.
    """

    reference: str
    archive_digest: str
    manifest_digest: str | None = None
    uri: str | None = None


def parse_target(text: str) -> TransferTarget:
    """Parse the value of --push: `mlflow`, `oci:PATH`, `folder:PATH`, or a path."""
    if text == Destination.MLFLOW.value:
        return TransferTarget(Destination.MLFLOW)
    kind, _, rest = text.partition(":")
    if kind not in (Destination.OCI.value, Destination.FOLDER.value):
        kind, rest = Destination.FOLDER.value, text
    if not rest:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} has no folder",
            "Write it as FOLDER, oci:FOLDER or mlflow.",
        )
    return TransferTarget(Destination(kind), rest)


def parse_source(text: str) -> TransferTarget | None:
    """Parse a Bento's KIND:LOCATION or KIND:LOCATION#TAG; None for the name of a model."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {each.value for each in Destination}:
        return None
    location, _, tag = rest.partition("#")
    if not location:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} names no Bento",
            "Write it as folder:PATH, oci:PATH#NAME:VERSION or mlflow:MODEL.",
        )
    return TransferTarget(Destination(kind), location, tag or None)


def push(
    target: TransferTarget, tag: str, catalog: MlflowCatalog, published: PublishedModel
) -> Pushed:
    """Push the Bento `tag` to `target`; MLflow keeps it on the run of `published`."""
    bento = find_bento(tag)
    match target.destination:
        case Destination.FOLDER:
            folder = push_folder(target.path, bento)
            return Pushed(f"folder:{folder}", _archive_digest(folder))
        case Destination.OCI:
            digest, listing = push_oci(target.path, bento)
            reference = f"oci:{target.path}#{listing.tag}"
            return Pushed(reference, listing.archive_digest, manifest_digest=digest)
        case Destination.MLFLOW:
            version = tag.partition(":")[2]
            with tempfile.TemporaryDirectory(prefix="mlctl-push-") as scratch:
                folder = push_folder(Path(scratch), bento)
                uri = catalog.attach(published, folder, f"{_RUN_FOLDER}/{version}")
                reference = f"mlflow:{published.name}/{published.version}#{version}"
                return Pushed(reference, _archive_digest(folder), uri=uri)


def pull(source: TransferTarget, *, force: bool = False) -> BentoInfo:
    """Import the Bento at `source` into the store, verified; `force` is that of `import_bento`."""
    match source.destination:
        case Destination.FOLDER:
            return pull_folder(source.path, force=force)
        case Destination.OCI:
            return pull_oci(source.path, source.tag, force=force)
        case Destination.MLFLOW:
            return pull_with(lambda folder: _fetch_from_mlflow(source, folder), force=force)


def push_folder(folder: Path, bento: BentoInfo) -> Path:
    """Copy the Bento to NAME-VERSION in `folder`, which is created if it does not exist."""
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
    """Write the Bento into the OCI image layout `folder`; return the manifest's digest."""
    listing = list_files(bento)
    return write_layout(folder, bento, listing), listing


def pull_folder(folder: Path, *, force: bool = False) -> BentoInfo:
    """Import the Bento that `push_folder` copied to `folder`."""
    return pull_with(lambda _: folder, force=force)


def pull_with(fetch: Fetch, *, force: bool = False) -> BentoInfo:
    """Import a Bento from the folder that `fetch` returns, given a folder for its downloads."""
    with incoming() as scratch:
        (scratch / "got").mkdir()
        found = fetch(scratch / "got")
        path = found / LISTING_NAME
        if not path.is_file():
            raise MlctlError(
                ErrorCode.BENTO_NOT_FOUND,
                f"there is no Bento at {found}: it has no {LISTING_NAME}",
                "Name the folder NAME-VERSION that `mlctl build --push` wrote.",
            )
        with path.open("rb") as file:
            listing = parse_listing(file.read(MAX_LISTING_BYTES + 1))
        check_room(listing, scratch)
        copy_files(found / BENTO_FOLDER, listing, scratch / "taken")
        return import_bento(scratch / "taken", listing, force=force)


def pull_oci(folder: Path, tag: str | None, *, force: bool = False) -> BentoInfo:
    """Import the Bento `tag`, or the only one, of an OCI image layout."""
    with incoming() as scratch:
        target = scratch / "taken"
        target.mkdir()
        listing = read_layout(folder, tag, target)
        return import_bento(target, listing, force=force)


def _archive_digest(folder: Path) -> str:
    return sha256_file(folder / LISTING_NAME)


def _fetch_from_mlflow(source: TransferTarget, folder: Path) -> Path:
    from registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    published = catalog.find_optimized(source.location)
    attached = catalog.attached(published, _RUN_FOLDER)
    found = [name for name in attached if source.tag in (None, name)]
    if len(found) != 1:
        wanted = "one Bento" if source.tag is None else repr(source.tag)
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"expected {wanted}; {published.uri} has: {', '.join(attached) or 'none'}",
            "Push one with `mlctl build MODEL --push mlflow`, or name it: mlflow:MODEL#VERSION.",
        )
    return catalog.fetch_attached(published, f"{_RUN_FOLDER}/{found[0]}", folder)
