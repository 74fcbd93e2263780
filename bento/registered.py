"""Bentos of optimized models in the registry."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlctl.bento.packaging import BuiltBento, build_bento
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import RUNTIMES, installed_version
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.model.requirements import RuntimeFlavor

if TYPE_CHECKING:
    from mlctl.registry.catalog import PublishedModel, Selection
    from mlctl.registry.mlflow_catalog import MlflowCatalog


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model in a Bento: its version in the registry (a URI) and the folder of its bundle.

    `target` is the execution target that it was optimized for.
    """

    name: str
    digest: str
    model: str
    bundle: str
    target: str


def build_registered(
    catalog: MlflowCatalog,
    published: Sequence[PublishedModel],
    name: str | None,
    flavor: RuntimeFlavor | None,
    *,
    force: bool,
    maps: Sequence[str] | None = None,
) -> tuple[BuiltBento, list[PackedModel]]:
    """Build the Bento of these versions; the first is the default model.

    Its labels name the registry's version of the first. With `maps` the versions are the stages of
    a pipeline. Raises as `build_bento` and `mlctl.services.layout.bento_layout.pack` do.
    """
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
        built = build_bento(packed, labels, force=force, flavor=flavor)
    uris = {each.digest: each.uri for each in published}
    models = [
        PackedModel(
            name=bundle.manifest.name,
            digest=bundle.digest,
            model=uris[bundle.digest],
            bundle=str(built.path / "src" / location),
            target=bundle.manifest.variant.target,
        )
        for location, bundle in packed.folders()
    ]
    return built, models


def split_stages(models: Sequence[str], maps: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the models that "A+B" names, and the maps if that is a pipeline.

    INVALID_INPUT for a pipeline beside other models, or maps without one.
    """
    stages = [stage for model in models for stage in model.split("+")]
    if len(stages) == len(models):
        if maps:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "--connect connects the stages of a pipeline, and there is none",
                "Write a pipeline as one word: mlctl build A+B --connect B.INPUT=A.OUTPUT.",
            )
        return stages, None
    if len(models) > 1 or "" in stages:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{' '.join(models)!r} is not one pipeline",
            "Write a pipeline as one word, A+B+C: a Bento holds it alone.",
        )
    return stages, list(maps)


def select(catalog: MlflowCatalog, models: Sequence[str], version: str | None) -> list[Selection]:
    """Return the optimized version of each model, with the reason for the choice.

    INVALID_INPUT for a `version` of several models.
    """
    if version is not None and len(models) > 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--version chooses a version of one model, but {len(models)} are given",
            "Name each version: mlctl build A-optimized/2 B-optimized/1.",
        )
    return [catalog.select_optimized(model, version) for model in models]


def runtime_hint(models: Sequence[PackedModel], flavor: RuntimeFlavor | None) -> str | None:
    """Return a warning if models for a GPU get this machine's runtime for CPUs, else None."""
    affected = [each.name for each in models if each.target != "cpu"]
    if flavor is not None or not affected or installed_version(RUNTIMES[1]) is not None:
        return None
    return (
        f"{', '.join(affected)}: optimized for a GPU, but the Bento gets this machine's ONNX "
        "Runtime, which is for CPUs. --runtime gpu packs the one for GPUs."
    )
