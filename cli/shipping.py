"""Bentos made of registered bundles, and sent to and taken from other places."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from bento.packaging import BuiltBento
    from bento.transfer.push import TransferTarget
    from registry.catalog import PublishedModel, Selection
    from registry.mlflow_catalog import MlflowCatalog
    from services.runtime.bento_store import BentoInfo

# Where a run has the Bentos of its bundle.
_UNDER = "bentos"


def build(
    catalog: MlflowCatalog,
    published: Sequence[PublishedModel],
    name: str | None,
    flavour: str | None,
    *,
    force: bool,
    maps: Sequence[str] | None = None,
) -> tuple[BuiltBento, list[dict[str, Any]]]:
    """The Bento of these versions, and its models as --json shows them.

    Its labels name the registry's version of the first, the default model. With `maps` they are the
    stages of a pipeline; see `services.runtime.bento_layout.pack`.
    """
    from bento.packaging import build_bento
    from services.runtime.bento_layout import combine_bundles
    from services.runtime.requirements import RuntimeFlavor

    with tempfile.TemporaryDirectory(prefix="mlctl-build-") as folder:
        bundles = [
            catalog.fetch_bundle(each, Path(folder) / f"bundle{number}")
            for number, each in enumerate(published)
        ]
        first = published[0]
        labels = {
            "mlctl.model": first.name,
            "mlctl.version": first.version,
            "mlctl.source": first.source_uri,
        }
        packed = combine_bundles(bundles, name, maps)
        wanted = None if flavour is None else RuntimeFlavor(flavour)
        built = build_bento(packed, labels, force=force, flavour=wanted)
    uris = {each.digest: each.uri for each in published}
    parts = [
        {
            "name": bundle.manifest.name,
            "digest": bundle.digest,
            "model": uris[bundle.digest],
            "bundle": str(built.path / "src" / place),
            "target": bundle.manifest.variant.target,
        }
        for place, bundle in packed.folders()
    ]
    return built, parts


def split_stages(models: Sequence[str], maps: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The models that "A+B" names, and the maps if that is a pipeline.

    INVALID_INPUT for a pipeline beside other models, or maps without one.
    """
    stages = [stage for model in models for stage in model.split("+")]
    if len(stages) == len(models):
        if maps:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "only the stages of a pipeline are mapped",
                "Write a pipeline as one word: mlctl build A+B --connect B.INPUT=A.OUTPUT.",
            )
        return stages, None
    if len(models) > 1 or "" in stages:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{' '.join(models)!r} is not one pipeline",
            "Write a pipeline as one word, A+B+C: it is all that its Bento holds.",
        )
    return stages, list(maps)


def select(catalog: MlflowCatalog, models: Sequence[str], version: str | None) -> list[Selection]:
    """The optimized versions of `models`, with the reasons.

    INVALID_INPUT for a `version` of several models.
    """
    if version is not None and len(models) > 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "--version chooses a version of one model, but several are given",
            "Name each one's version: mlctl build A-optimized/2 B-optimized/1.",
        )
    return [catalog.select_optimized(model, version) for model in models]


def runtime_hint(parts: Sequence[dict[str, Any]], flavour: str | None) -> str | None:
    """What to say of a Bento of such models that gets the runtime of this machine, or nothing."""
    from bundle.packages import RUNTIMES, installed_version

    asked = [each["name"] for each in parts if each["target"] != "cpu"]
    if flavour is not None or not asked or installed_version(RUNTIMES[1]) is not None:
        return None
    return (
        f"{', '.join(asked)}: made for a GPU, but ONNX Runtime here is the one for CPUs, and so "
        "is the Bento's. --runtime gpu makes one for GPUs."
    )


def push(
    target: TransferTarget, tag: str, catalog: MlflowCatalog, published: PublishedModel
) -> dict[str, Any]:
    """Send the Bento `tag` to `target`; MLflow keeps it on the run of `published`.

    As --json shows it: `reference` is what `mlctl pull` takes, `parcel_digest` what it prints.
    """
    from bento.transfer import push as ship
    from services.runtime.bento_store import find_bento

    bento = find_bento(tag)
    match target.place:
        case ship.Destination.FOLDER:
            folder = ship.push_folder(target.path, bento)
            return {"reference": f"folder:{folder}", "parcel_digest": _parcel_digest(folder)}
        case ship.Destination.OCI:
            digest, listing = ship.push_oci(target.path, bento)
            reference = f"oci:{target.path}#{listing.tag}"
            sent = {"reference": reference, "parcel_digest": listing.parcel_digest}
            return {**sent, "manifest_digest": digest}
    with tempfile.TemporaryDirectory(prefix="mlctl-push-") as scratch:
        folder = ship.push_folder(Path(scratch), bento)
        version = tag.partition(":")[2]
        where = catalog.attach(published, folder, f"{_UNDER}/{version}")
        reference = f"mlflow:{_exact(published)}#{version}"
        return {"reference": reference, "parcel_digest": _parcel_digest(folder), "uri": where}


def _parcel_digest(folder: Path) -> str:
    """What stands for every byte of the Bento that was pushed to `folder`."""
    from bento.transfer.archive import LISTING_NAME
    from bundle.files import sha256_file

    return sha256_file(folder / LISTING_NAME)


def pull(target: TransferTarget, *, force: bool = False) -> BentoInfo:
    """Take the Bento at `target` into the store, proved; see `bento.transfer.archive.take_in`."""
    from bento.transfer import push as ship

    match target.place:
        case ship.Destination.FOLDER:
            return ship.pull_folder(target.path, force=force)
        case ship.Destination.OCI:
            return ship.pull_oci(target.path, target.tag, force=force)
    return ship.pull_with(lambda folder: _fetch(target, folder), force=force)


def _fetch(target: TransferTarget, folder: Path) -> Path:
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
