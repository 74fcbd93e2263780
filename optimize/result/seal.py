"""Seal the chosen variant into a bundle: model, golden rows, evidence, manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GENERATION_FOLDER,
    GOLDEN_NAME,
    MODEL_NAME,
    SCHEMA_VERSION,
    Batching,
    Manifest,
    SourceVersion,
)
from mlctl.bundle.manifest import VariantInfo as ManifestVariant
from mlctl.bundle.verify import VerifiedBundle, seal, verify
from mlctl.core.canonical import canonical_json
from mlctl.core.entries import LIST_NAME
from mlctl.core.errors import MlctlError
from mlctl.core.files import scratch_directory, settle, write_atomic
from mlctl.core.home import state_dir
from mlctl.optimize.generation.source import SourceAnswers
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.optimize.recipes.base import DATA_NAME
from mlctl.optimize.recipes.generation import read_generation
from mlctl.optimize.result.constraints import find_constraints
from mlctl.optimize.result.evidence import OptimizeReport, evidence_document, manifest_evidence
from mlctl.optimize.variants.choice import Judged
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.variant import DETAILS_NAME
from mlctl.registry.names import bundle_name
from mlctl.services.model.golden import load_golden, load_golden_features, save_golden
from mlctl.services.model.padding import LengthPadding
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.session import open_session
from mlctl.services.model.transform import load_transform
from mlctl.services.model.warmup import check_padding

GOLDEN_ROWS = 32


def seal_bundle(exported: ExportedModel, report: OptimizeReport, chosen: Judged) -> VerifiedBundle:
    """Seal the chosen variant's files and evidence under the state directory, by digest.

    PARITY_FAILED if the manifest pads sequences and padding changes the answers.
    """
    model = chosen.variant.model
    assert model is not None
    store = state_dir("bundles")
    with scratch_directory(store) as scratch:
        if isinstance(exported, SourceAnswers):
            records = shutil.ignore_patterns(DETAILS_NAME, LIST_NAME)
            shutil.copytree(model, scratch / GENERATION_FOLDER, ignore=records)
            shutil.copyfile(exported.golden, scratch / GOLDEN_NAME)
        else:
            for name in (MODEL_NAME, DATA_NAME):
                if (model / name).is_file():
                    shutil.copyfile(model / name, scratch / name)
            transform = exported.prepared.transform
            if transform is not None:
                transform.copy_into(scratch)
            _write_golden(exported, scratch / GOLDEN_NAME)
        evidence = canonical_json(evidence_document(report))
        write_atomic(scratch / EVIDENCE_NAME, evidence)
        scratch.chmod(0o755)
        sealed = seal(scratch, _manifest(exported, report.device, chosen))
        if report.device.timed:
            _prove_padding(sealed, report.device)
        return _move(sealed, store / sealed.digest)


def _manifest(exported: ExportedModel, device: RunDevice, chosen: Judged) -> Manifest:
    prepared, variant = exported.prepared, chosen.variant
    source = prepared.source
    assert variant.measured is not None
    assert variant.model is not None
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
        input_constraints=None if source.generates else find_constraints(exported),
        generation=read_generation(variant.model) if source.generates else None,
        transform=None if prepared.transform is None else prepared.transform.manifest_entry(),
        variant=ManifestVariant(
            recipe=variant.recipe,
            precision=variant.precision,
            target=device.target.value,
            opset=variant.measured.opset,
        ),
        # The engine forms its own batches, token by token.
        batching=Batching(max_rows=1, buckets=(1,), row_independent=True)
        if source.generates
        else exported.baseline.batching_options.batching(
            row_independent=variant.measured.row_independent
        ),
        evidence=manifest_evidence(variant.measured, exported.baseline.metric),
    )


def _write_golden(exported: ExportedModel, path: Path) -> None:
    """Write rows for warm-up and parity checks with the source model's own answers."""
    prepared, baseline = exported.prepared, exported.baseline
    rows = prepared.raw.held_out.head(GOLDEN_ROWS)
    outputs = {name: array[: rows.count] for name, array in baseline.outputs.items()}
    if prepared.transform is not None:
        outputs = prepared.transform.postprocess(outputs)
    names = {spec.name for spec in prepared.api_signature.inputs}
    inputs = {name: array for name, array in rows.inputs.items() if name in names}
    features = {name: array for name, array in rows.inputs.items() if name not in names}
    save_golden(path, inputs, outputs, features)


def _prove_padding(bundle: VerifiedBundle, device: RunDevice) -> None:
    """Prove what the server proves again at start-up; PARITY_FAILED if padding changes answers."""
    manifest = bundle.manifest
    if not manifest.batching.pad:
        return
    session = open_session(bundle.path(MODEL_NAME), device.provider, batching=manifest.batching)
    scorer = Scorer(manifest, bundle.digest, session, load_transform(bundle))
    lengths = LengthPadding(manifest.signature, manifest.batching.pad)
    golden = bundle.path(GOLDEN_NAME)
    check_padding(scorer, lengths, load_golden(golden)[0] | load_golden_features(golden))


def _move(sealed: VerifiedBundle, target: Path) -> VerifiedBundle:
    """Move a sealed bundle to its final path; a damaged one there is replaced."""
    settle(sealed.root, target, lambda there: _is_whole(there, sealed.digest))
    return VerifiedBundle(target, sealed.manifest, sealed.digest)


def _is_whole(bundle: Path, digest: str) -> bool:
    try:
        verify(bundle, digest)
    except MlctlError:
        return False
    return True
