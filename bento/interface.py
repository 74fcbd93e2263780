"""The interface of a Bento: the signatures of its models by their names."""

from __future__ import annotations

from pathlib import Path

from mlctl.bundle.interface import PREDICT
from mlctl.bundle.tensors import Signature
from mlctl.bundle.verify import read_manifest
from mlctl.services.layout.bento_layout import model_folder, read_bento_manifest
from mlctl.services.model.pipeline import pipeline_signature


def interface_of(source: Path) -> dict[str, Signature]:
    """Return the signatures of the Bento with sources in the folder `source`, without verifying it.

    With several models, `/predict` has one as well, because its default model may change.
    MANIFEST_INVALID as at the start of a server.
    """
    together = read_bento_manifest(source)
    if together is None:
        manifest = read_manifest(model_folder(source))
        return {manifest.name: manifest.signature}
    stages = {name: read_manifest(model_folder(source, name)).signature for name in together.names}
    if together.pipeline is None:
        return {**stages, PREDICT: stages[together.default]}
    whole = pipeline_signature(together.pipeline, stages)
    return {**stages, together.name: whole, PREDICT: whole}
