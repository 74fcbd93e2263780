"""Putting the chosen variant into a sealed bundle: model, golden rows, evidence, manifest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import MlctlError
from bundle.files import write_atomic
from bundle.home import state_dir
from bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    SCHEMA_VERSION,
    Batching,
    Manifest,
    Source,
    canonical_json,
)
from bundle.manifest import Variant as ManifestVariant
from bundle.verify import VerifiedBundle, seal, verify
from optimize.choose import Goals, Judged
from optimize.evidence import evidence_document, manifest_evidence
from optimize.exported import Exported
from optimize.judge import MAX_BATCH
from optimize.recipes.base import DATA_NAME
from registry.names import bundle_name
from services.golden import save_golden

GOLDEN_ROWS = 32
BUCKETS = (1, 2, 4, 8, 16, MAX_BATCH)


def seal_bundle(
    exported: Exported, goals: Goals, judged: Sequence[Judged], chosen: Judged
) -> VerifiedBundle:
    """Seal the chosen variant's files and evidence under the state directory, by digest."""
    model = chosen.variant.model
    assert model is not None
    store = state_dir("bundles")
    scratch = Path(tempfile.mkdtemp(dir=store, prefix="."))
    try:
        for name in (MODEL_NAME, DATA_NAME):
            if (model / name).is_file():
                shutil.copyfile(model / name, scratch / name)
        _write_golden(exported, scratch / GOLDEN_NAME)
        evidence = evidence_document(
            exported.source, exported.data, exported.baseline, goals, judged
        )
        write_atomic(scratch / EVIDENCE_NAME, canonical_json(evidence))
        scratch.chmod(0o755)
        sealed = seal(scratch, _manifest(exported, chosen))
        return _move(sealed, store / sealed.digest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def batching(row_independent: bool) -> Batching:
    """The batch sizes to serve with: only single rows if they would influence each other."""
    buckets = BUCKETS if row_independent else (1,)
    return Batching(max_rows=buckets[-1], buckets=buckets, row_independent=row_independent)


def _manifest(exported: Exported, chosen: Judged) -> Manifest:
    source, variant = exported.source, chosen.variant
    assert variant.measured is not None
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=bundle_name(source.name),
        source=Source(
            uri=source.uri,
            version=source.version,
            run_id=source.run_id,
            sha256=source.sha256,
            pickle_allowed=source.pickle_allowed,
        ),
        signature=source.signature,
        variant=ManifestVariant(
            recipe=variant.recipe,
            precision=variant.precision,
            target="cpu",
            opset=variant.measured.opset,
        ),
        batching=batching(exported.baseline.row_independent),
        evidence=manifest_evidence(variant.measured),
    )


def _write_golden(exported: Exported, path: Path) -> None:
    """Rows to warm up with and to compare with: the answers are the source model's own."""
    baseline = exported.baseline
    rows = baseline.rows.head(GOLDEN_ROWS)
    outputs = {name: array[: rows.count] for name, array in baseline.outputs.items()}
    save_golden(path, rows.inputs, outputs)


def _move(sealed: VerifiedBundle, target: Path) -> VerifiedBundle:
    """Give a sealed bundle its final place, over a damaged one but not over itself."""
    if target.exists():
        try:
            return verify(target, sealed.digest)
        except MlctlError:
            shutil.rmtree(target)
    sealed.root.rename(target)
    return VerifiedBundle(target, sealed.manifest, sealed.digest)
