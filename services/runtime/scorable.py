"""The model of a batch: found by tag or folder, verified, and opened for many rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from bundle.verify import VerifiedBundle, verify
from services.runtime.bento_layout import (
    expected_digest,
    is_bundle,
    model_folder,
    read_bento_manifest,
    read_contents,
)
from services.runtime.pipeline_scorer import PipelineScorer, VerifiedPipeline
from services.runtime.settings import RuntimeSettings, read_environment
from services.runtime.signing import require_signed

if TYPE_CHECKING:
    from services.runtime.scorer import Scorer

# What rows can be scored with.
Scorable = VerifiedBundle | VerifiedPipeline
# A unit's inputs; what is larger than usual, such as pictures, comes in fewer rows.
_UNIT_BYTES = 32 << 20
_UNIT_ROWS = 20_000
# Rows in a call of the runtime: as many as keep a core's cache warm, by the weights' bytes.
_CALL_ROWS = 4096
_CALL_BYTES = 4 << 20
_WEIGHED_BYTES = 512 << 20


def find_model(reference: str) -> VerifiedBundle:
    """The verified bundle of a Bento's tag, of a Bento's folder, or in a bundle's own folder.

    Of a Bento with several models it is the default one; TAG/NAME is another.
    SIGNATURE_INVALID if MLCTL_REQUIRE_SIGNATURE is set and it is not signed by that key.
    """
    bundle = _find(reference)
    require_signed(bundle, read_environment(RuntimeSettings).require_signature)
    return bundle


def find_scorable(reference: str) -> Scorable:
    """What `find_model` finds, and a pipeline as a whole where that refuses it."""
    source = _whole_source(reference)
    whole = None if source is None else VerifiedPipeline.of(read_contents(source))
    if whole is None:
        return find_model(reference)
    for bundle in whole.stages:
        require_signed(bundle, read_environment(RuntimeSettings).require_signature)
    return whole


def _whole_source(reference: str) -> Path | None:
    """The sources of the Bento that `reference` names, not one model of it; None without them."""
    from services.runtime.bento_store import DIGEST_LABEL, find_bento

    source = Path(reference) / "src"
    if is_bundle(Path(reference)) or is_bundle(model_folder(source)):
        return source if read_bento_manifest(source) else None
    tag, _, name = reference.partition("/")
    bento = find_bento(tag)
    if name not in ("", bento.tag.partition(":")[0]) or not read_bento_manifest(bento.source):
        return None
    expected_digest(bento.source, bento.labels.get(DIGEST_LABEL))
    return bento.source


def _find(reference: str) -> VerifiedBundle:
    source = Path(reference) / "src"
    for folder in (Path(reference), model_folder(source)):
        if is_bundle(folder):
            _refuse_pipeline(source)
            return verify(folder)
    from services.runtime.bento_store import DIGEST_LABEL, find_bento

    tag, _, name = reference.partition("/")
    bento = find_bento(tag)
    if name in ("", bento.tag.partition(":")[0]):
        _refuse_pipeline(bento.source)
    folder = model_folder(bento.source, name or None)
    if not is_bundle(folder):
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"the Bento {bento.tag} holds no bundle: it was not made by mlctl",
            "`mlctl build NAME` makes one.",
        )
    bundle = verify(folder, expected_digest(bento.source, bento.labels.get(DIGEST_LABEL), name))
    if name not in ("", bundle.manifest.name):
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the Bento {bento.tag} has no model {name!r}; it has {bundle.manifest.name}",
        )
    return bundle


def _refuse_pipeline(source: Path) -> None:
    """UNSUPPORTED_MODEL if that is a pipeline's Bento, which `find_scorable` finds as a whole."""
    together = read_bento_manifest(source)
    if together is not None and together.pipeline is not None:
        stages = together.pipeline.stages
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{together.name!r} is a pipeline of {' + '.join(stages)}; here one model is needed",
            f"Its stages can be named: TAG/{stages[0]} is the first.",
        )


def absolute_reference(reference: str) -> str:
    """`reference` so that it means the same in any working directory: a folder's full path."""
    return str(Path(reference).resolve()) if Path(reference).is_dir() else reference


def check_batched(model: Scorable) -> None:
    """UNSUPPORTED_MODEL for a model that takes no rows."""
    if not model.signature.batched:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"model {model.name!r} has no batch dimension, so a table's rows cannot feed it",
            "Log it with a signature whose tensors have -1 as their first dimension.",
        )


def unit_rows(model: Scorable) -> int:
    """How many rows make a unit of bounded size, always the same for the same model."""
    row = sum(_row_bytes(spec) for spec in model.signature.inputs)
    return max(1, min(_UNIT_ROWS, _UNIT_BYTES // max(1, row)))


def open_scorer(bundle: VerifiedBundle, batch_rows: int | None = None) -> Scorer:
    """The scorer that serves online, with larger calls where its rows are independent."""
    from services.runtime.scorer import Scorer
    from services.runtime.settings import RuntimeSettings, read_environment

    # The calls of a job have all the same size but for the last one, which need not be the
    # largest of the bundle's sizes: there is nothing to pad to, and no graph for it.
    settings = read_environment(RuntimeSettings).model_copy(update={"cuda_graphs": False})
    on_cuda = (settings.provider or bundle.manifest.variant.target) == "cuda"
    scorer = Scorer.open(bundle, settings, pad_rows=False if on_cuda else None)
    rows = batch_rows or _call_rows(bundle, scorer.provider)
    if scorer.provider == "tensorrt":  # an engine takes no more than it was built for
        rows = min(rows, scorer.max_rows)
    scorer.max_rows = rows
    return scorer


def open_scorable(model: Scorable, batch_rows: int | None = None) -> Scorer | PipelineScorer:
    """The scorer of a model, or those of a pipeline as one; see `open_scorer`."""
    if isinstance(model, VerifiedPipeline):
        return PipelineScorer(model, tuple(open_scorer(each, batch_rows) for each in model.stages))
    return open_scorer(model, batch_rows)


def bundles_of(model: Scorable) -> tuple[VerifiedBundle, ...]:
    """The one of a model, or those of a pipeline's stages in their order."""
    return model.stages if isinstance(model, VerifiedPipeline) else (model,)


def verify_copies(model: Scorable, place: Callable[[VerifiedBundle], Path]) -> Scorable:
    """The same model with its bundles where `place` says, proved anew; `verify`'s errors."""
    found = tuple(verify(place(bundle), bundle.digest) for bundle in bundles_of(model))
    return replace(model, stages=found) if isinstance(model, VerifiedPipeline) else found[0]


def _call_rows(bundle: VerifiedBundle, provider: str) -> int:
    """At least what the bundle says; for a light model more, for a call costs more than rows."""
    manifest = bundle.manifest
    if provider != "cpu":
        return manifest.batching.max_rows
    weights = sum(e.size for e in manifest.files if e.path.startswith(MODEL_NAME))
    signature = manifest.model_signature
    row = sum(_row_bytes(spec) for spec in (*signature.inputs, *signature.outputs))
    rows = min(_CALL_ROWS, _WEIGHED_BYTES // max(1, weights), _CALL_BYTES // max(1, row))
    return max(manifest.batching.max_rows, rows)


def _row_bytes(spec: TensorSpec) -> int:
    """Bytes of one row; 0 where only the row itself tells."""
    if spec.dtype is Datatype.BYTES or DYNAMIC in spec.shape[1:]:
        return 0
    return math.prod(spec.shape[1:]) * (spec.dtype.itemsize or 0)
