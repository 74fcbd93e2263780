"""Find, verify and open the model of a batch job or a stream, by tag or folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import (
    is_bundle,
    model_folder,
    read_contents,
)
from mlctl.services.layout.pipeline_scorer import PipelineScorer, VerifiedPipeline
from mlctl.services.layout.signing import require_signed
from mlctl.services.model.settings import RuntimeSettings, read_environment

if TYPE_CHECKING:
    from mlctl.services.model.scorer import Scorer

# A single model, or a pipeline.
Scorable = VerifiedBundle | VerifiedPipeline
# Maximum inputs of a unit: large rows, such as images, make units of fewer rows.
_UNIT_BYTES = 32 << 20
_UNIT_ROWS = 20_000
# Maximum rows and bytes in one call of the runtime, so that they stay in a core's cache.
_CALL_ROWS = 4096
_CALL_BYTES = 4 << 20
_WEIGHED_BYTES = 512 << 20


def find_scorable(reference: str) -> Scorable:
    """Return the verified model of a Bento's tag, of a Bento's folder, or of a bundle's folder.

    TAG/NAME is one model of a Bento with several; see `scorable_in`.
    """
    from mlctl.services.layout.bento_store import DIGEST_LABEL, find_bento

    if is_bundle(Path(reference)):
        return _require_signed(verify(Path(reference)))
    source = Path(reference) / "src"
    if is_bundle(model_folder(source)):
        return scorable_in(source)
    tag, _, name = reference.partition("/")
    bento = find_bento(tag)
    if not is_bundle(model_folder(bento.source)):
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"the Bento {bento.tag} has no bundle: it was not built by mlctl",
            "Build one with `mlctl build NAME`.",
        )
    return scorable_in(bento.source, name, bento.labels.get(DIGEST_LABEL))


def scorable_in(source: Path, name: str = "", label: str | None = None) -> Scorable:
    """Return the model `name` of the Bento with sources in the folder `source`.

    Without a name it is the pipeline, or the default model. All models are verified against the
    digests that the Bento lists, and the Bento against its `label`, if it has one: DIGEST_MISMATCH.
    SIGNATURE_INVALID if MLCTL_REQUIRE_SIGNATURE is set and a bundle is not signed by that key.
    """
    contents = read_contents(source)
    if label not in (None, contents.digest):
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH,
            f"the digest of the Bento's models is {contents.digest}, expected {label}",
        )
    models = {bundle.name: bundle for bundle in contents.bundles}
    found: Scorable | None = models.get(name)
    if name in ("", contents.name):
        found = VerifiedPipeline.of(contents) or contents.bundles[0]
    if found is None:
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the Bento has no model {name!r}; it has {', '.join(models)}",
        )
    return _require_signed(found)


def _require_signed(model: Scorable) -> Scorable:
    for bundle in bundles_of(model):
        require_signed(bundle, read_environment(RuntimeSettings).require_signature)
    return model


def check_batched(model: Scorable) -> None:
    """Raise UNSUPPORTED_MODEL for a model without a batch dimension."""
    if not model.signature.batched:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"model {model.name!r} has no batch dimension, so it cannot score rows of a table",
            "Log it with a signature whose tensors have -1 as their first dimension.",
        )


def unit_rows(model: Scorable) -> int:
    """Return the rows of a unit of bounded size; equal for equal models."""
    row = sum(_row_bytes(spec) for spec in model.signature.inputs)
    return max(1, min(_UNIT_ROWS, _UNIT_BYTES // max(1, row)))


def open_scorer(bundle: VerifiedBundle, batch_rows: int | None = None) -> Scorer:
    """Open the scorer that serves online, with larger calls if rows are independent."""
    from mlctl.services.model.scorer import Scorer
    from mlctl.services.model.settings import RuntimeSettings, read_environment

    # All calls of a job but the last have one size, which need not be one of the bundle's
    # buckets. So there is nothing to pad to.
    settings = read_environment(RuntimeSettings)
    on_cuda = (settings.provider or bundle.manifest.variant.target) == "cuda"
    scorer = Scorer.open(bundle, settings, pad_rows=False if on_cuda else None)
    rows = batch_rows or _call_rows(bundle, scorer.provider)
    if scorer.provider == "tensorrt":  # an engine accepts only the rows it was built for
        rows = min(rows, scorer.max_rows)
    scorer.max_rows = rows
    return scorer


def open_scorable(model: Scorable, batch_rows: int | None = None) -> Scorer | PipelineScorer:
    """Open the scorer of a model, or of all stages of a pipeline as one; see `open_scorer`."""
    if isinstance(model, VerifiedPipeline):
        return PipelineScorer(model, tuple(open_scorer(each, batch_rows) for each in model.stages))
    return open_scorer(model, batch_rows)


def bundles_of(model: Scorable) -> tuple[VerifiedBundle, ...]:
    """Return the bundle of a model, or those of a pipeline's stages in order."""
    return model.stages if isinstance(model, VerifiedPipeline) else (model,)


def verify_copies(model: Scorable, folder_of: Callable[[VerifiedBundle], Path]) -> Scorable:
    """Verify copies of the model's bundles in the folders `folder_of`, and return their model."""
    found = tuple(verify(folder_of(bundle), bundle.digest) for bundle in bundles_of(model))
    return replace(model, stages=found) if isinstance(model, VerifiedPipeline) else found[0]


def _call_rows(bundle: VerifiedBundle, provider: str) -> int:
    """Return the rows of one call: the bundle's, or more for a light model with costly calls."""
    manifest = bundle.manifest
    if provider != "cpu":
        return manifest.batching.max_rows
    weights = sum(e.size for e in manifest.files if e.path.startswith(MODEL_NAME))
    signature = manifest.model_signature
    row = sum(_row_bytes(spec) for spec in (*signature.inputs, *signature.outputs))
    rows = min(_CALL_ROWS, _WEIGHED_BYTES // max(1, weights), _CALL_BYTES // max(1, row))
    return max(manifest.batching.max_rows, rows)


def _row_bytes(spec: TensorSpec) -> int:
    """Return the bytes of one row; 0 if they differ from row to row."""
    if spec.dtype is Datatype.BYTES or DYNAMIC in spec.shape[1:]:
        return 0
    return math.prod(spec.shape[1:]) * (spec.dtype.itemsize or 0)
