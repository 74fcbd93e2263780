"""Putting the chosen variant into a sealed bundle: model, golden rows, evidence, manifest."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import MlctlError
from bundle.files import scratch_directory, settle, write_atomic
from bundle.home import state_dir
from bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    SCHEMA_VERSION,
    Manifest,
    SourceVersion,
    canonical_json,
)
from bundle.manifest import VariantInfo as ManifestVariant
from bundle.verify import VerifiedBundle, seal, verify
from optimize.choice import Judged
from optimize.constraints import find_constraints
from optimize.device import RunDevice
from optimize.evidence import evidence_document, manifest_evidence
from optimize.goals import Goals
from optimize.recipes.base import DATA_NAME
from optimize.source_graph import Exported
from registry.names import bundle_name
from services.runtime.golden import load_golden, save_golden
from services.runtime.padding import LengthPadding
from services.runtime.scorer import Scorer
from services.runtime.session import open_session
from services.runtime.transform import load_transform
from services.runtime.warmup import check_padding

GOLDEN_ROWS = 32


def seal_bundle(
    exported: Exported, goals: Goals, place: RunDevice, judged: Sequence[Judged], chosen: Judged
) -> VerifiedBundle:
    """Seal the chosen variant's files and evidence under the state directory, by digest.

    PARITY_FAILED if sequences are to be padded, and that changes the model's answers.
    """
    model = chosen.variant.model
    assert model is not None
    store = state_dir("bundles")
    with scratch_directory(store) as scratch:
        for name in (MODEL_NAME, DATA_NAME):
            if (model / name).is_file():
                shutil.copyfile(model / name, scratch / name)
        transform = exported.prepared.transform
        if transform is not None:
            transform.copy_into(scratch)
        _write_golden(exported, scratch / GOLDEN_NAME)
        evidence = evidence_document(exported, goals, place, judged)
        write_atomic(scratch / EVIDENCE_NAME, canonical_json(evidence))
        scratch.chmod(0o755)
        sealed = seal(scratch, _manifest(exported, place, chosen))
        if place.timed:
            _prove_padding(sealed, place)
        return _move(sealed, store / sealed.digest)


def _manifest(exported: Exported, place: RunDevice, chosen: Judged) -> Manifest:
    prepared, variant = exported.prepared, chosen.variant
    source, metric = prepared.source, exported.baseline.metric
    assert variant.measured is not None
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=bundle_name(source.name),
        source=SourceVersion(
            uri=source.uri,
            version=source.version,
            run_id=source.run_id,
            sha256=source.sha256,
            pickle_allowed=source.pickle_allowed,
        ),
        signature=prepared.api_signature,
        input_constraints=find_constraints(exported),
        transform=None if prepared.transform is None else prepared.transform.manifest_entry(),
        variant=ManifestVariant(
            recipe=variant.recipe,
            precision=variant.precision,
            target=place.target.value,
            opset=variant.measured.opset,
        ),
        batching=exported.baseline.joining.batching(
            row_independent=variant.measured.row_independent
        ),
        evidence=manifest_evidence(variant.measured, None if metric is None else metric.name),
    )


def _write_golden(exported: Exported, path: Path) -> None:
    """Rows to warm up with and to compare with: the answers are the source model's own."""
    prepared, baseline = exported.prepared, exported.baseline
    rows = prepared.raw.held_out.head(GOLDEN_ROWS)
    outputs = {name: array[: rows.count] for name, array in baseline.outputs.items()}
    if prepared.transform is not None:
        outputs = prepared.transform.postprocess(outputs)
    save_golden(path, rows.inputs, outputs)


def _prove_padding(bundle: VerifiedBundle, place: RunDevice) -> None:
    """What the server's start will prove again; PARITY_FAILED if the model cannot be padded."""
    manifest = bundle.manifest
    if not manifest.batching.pad:
        return
    session = open_session(bundle.path(MODEL_NAME), place.provider, batching=manifest.batching)
    scorer = Scorer(manifest, bundle.digest, session, load_transform(bundle))
    lengths = LengthPadding(manifest.signature, manifest.batching.pad)
    check_padding(scorer, lengths, load_golden(bundle.path(GOLDEN_NAME))[0])


def _move(sealed: VerifiedBundle, target: Path) -> VerifiedBundle:
    """Give a sealed bundle its final place, over a damaged one but not over itself."""
    settle(sealed.root, target, lambda there: _is_whole(there, sealed.digest))
    return VerifiedBundle(target, sealed.manifest, sealed.digest)


def _is_whole(bundle: Path, digest: str) -> bool:
    try:
        verify(bundle, digest)
    except MlctlError:
        return False
    return True
