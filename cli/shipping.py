"""Bentos sent to and taken from other places: what build --push and pull share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from registry.catalog import PublishedModel
    from registry.mlflow_catalog import MlflowCatalog
    from services.ship.push import Target
    from services.store import BentoInfo

# Where a run has the Bentos of its bundle.
_UNDER = "bentos"


def push(
    target: Target, tag: str, catalog: MlflowCatalog, published: PublishedModel
) -> dict[str, Any]:
    """Send the Bento `tag` to `target`; MLflow keeps it on the run of `published`.

    As --json shows it; `reference` is what `mlctl pull` takes.
    """
    from services.ship import push as ship
    from services.store import find_bento

    bento = find_bento(tag)
    match target.place:
        case ship.Place.FOLDER:
            folder = ship.push_folder(target.path, bento)
            return {"reference": f"folder:{folder}"}
        case ship.Place.OCI:
            digest, listing = ship.push_oci(target.path, bento)
            reference = f"oci:{target.path}#{listing.tag}"
            return {"reference": reference, "manifest_digest": digest}
    with tempfile.TemporaryDirectory(prefix="mlctl-push-") as scratch:
        folder = ship.push_folder(Path(scratch), bento)
        version = tag.partition(":")[2]
        where = catalog.attach(published, folder, f"{_UNDER}/{version}")
    return {"reference": f"mlflow:{_exact(published)}#{version}", "uri": where}


def pull(target: Target) -> BentoInfo:
    """Take the Bento at `target` into the store, proved."""
    from services.ship import push as ship

    match target.place:
        case ship.Place.FOLDER:
            return ship.pull_folder(target.path)
        case ship.Place.OCI:
            return ship.pull_oci(target.path, target.tag)
    return ship.pull_with(lambda folder: _fetch(target, folder))


def _fetch(target: Target, folder: Path) -> Path:
    from registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    published = catalog.find_optimized(target.where)
    there = catalog.attached(published, _UNDER)
    found = [name for name in there if target.tag in (None, name)]
    if len(found) != 1:
        wanted = "one Bento" if target.tag is None else repr(target.tag)
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"{wanted} was looked for; {published.uri} has: {', '.join(there) or 'none'}",
            "Push one with `mlctl build MODEL --push mlflow`, or name it: mlflow:MODEL#VERSION.",
        )
    return catalog.fetch_attached(published, f"{_UNDER}/{found[0]}", folder)


def _exact(published: PublishedModel) -> str:
    return f"{published.name}/{published.version}"
