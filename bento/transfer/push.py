"""Push a Bento to an OCI image layout, in a folder or in MLflow, and pull it, verified."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from mlctl.bento.transfer.archive import import_bento, incoming, list_files
from mlctl.bento.transfer.oci import read_layout, write_layout
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_store import BentoInfo, find_bento

if TYPE_CHECKING:
    from mlctl.registry.catalog import PublishedModel
    from mlctl.registry.mlflow_catalog import MlflowCatalog

# The folder of a run's artifacts that holds the Bentos of its bundle.
_RUN_FOLDER = "bentos"


class Destination(Enum):
    """The kinds of storage for Bentos."""

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
    manifest_digest: str
    uri: str | None = None


def parse_target(text: str) -> TransferTarget:
    """Parse the value of --push: `mlflow`, or the folder of a layout as `oci:FOLDER`."""
    if text == Destination.MLFLOW.value:
        return TransferTarget(Destination.MLFLOW)
    kind, _, folder = text.partition(":")
    if kind != Destination.OCI.value or not folder:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} is no destination of a Bento",
            "Write it as oci:FOLDER or mlflow. A registry takes images: mlctl containerize.",
        )
    return TransferTarget(Destination.OCI, folder)


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
            "Write it as oci:PATH#NAME:VERSION or mlflow:MODEL.",
        )
    return TransferTarget(Destination(kind), location, tag or None)


def push(
    target: TransferTarget, tag: str, catalog: MlflowCatalog, published: PublishedModel
) -> Pushed:
    """Push the Bento `tag` to `target`; MLflow keeps it on the run of `published`."""
    bento = find_bento(tag)
    if target.destination is Destination.OCI:
        return push_oci(target.path, bento)
    version = tag.partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="mlctl-push-") as scratch:
        pushed = push_oci(Path(scratch), bento)
        uri = catalog.attach(published, Path(scratch), f"{_RUN_FOLDER}/{version}")
    reference = f"mlflow:{published.name}/{published.version}#{version}"
    return replace(pushed, reference=reference, uri=uri)


def push_oci(folder: Path, bento: BentoInfo) -> Pushed:
    """Write the Bento into the OCI image layout `folder`."""
    listing = list_files(bento)
    digest = write_layout(folder, bento, listing)
    return Pushed(f"oci:{folder}#{listing.tag}", listing.archive_digest, digest)


def pull(source: TransferTarget, *, force: bool = False) -> BentoInfo:
    """Import the Bento at `source` into the store, verified; `force` is that of `import_bento`."""
    if source.destination is Destination.OCI:
        return pull_oci(source.path, source.tag, force=force)
    with tempfile.TemporaryDirectory(prefix="mlctl-pull-") as scratch:
        return pull_oci(_fetch_from_mlflow(source, Path(scratch)), None, force=force)


def pull_oci(folder: Path, tag: str | None, *, force: bool = False) -> BentoInfo:
    """Import the Bento `tag`, or the only one, of an OCI image layout."""
    with incoming() as scratch:
        target = scratch / "taken"
        target.mkdir()
        listing = read_layout(folder, tag, target)
        return import_bento(target, listing, force=force)


def _fetch_from_mlflow(source: TransferTarget, folder: Path) -> Path:
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    published = catalog.find_optimized(source.location)
    attached = catalog.attached(published, _RUN_FOLDER)
    found = [name for name in attached if source.tag in (None, name)]
    if len(found) != 1:
        expected = "one Bento" if source.tag is None else repr(source.tag)
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"expected {expected}; {published.uri} has: {', '.join(attached) or 'none'}",
            "Push one with `mlctl build MODEL --push mlflow`, or name it: mlflow:MODEL#VERSION.",
        )
    return catalog.fetch_attached(published, f"{_RUN_FOLDER}/{found[0]}", folder)
