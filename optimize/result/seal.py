"""Seal the chosen variant into a bundle: model, golden rows, evidence, manifest."""

from __future__ import annotations

from pathlib import Path

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    SCHEMA_VERSION,
    Manifest,
    SourceVersion,
)
from mlctl.bundle.manifest import VariantInfo as ManifestVariant
from mlctl.bundle.verify import VerifiedBundle, seal, verify
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import MlctlError
from mlctl.core.files import scratch_directory, settle, write_atomic
from mlctl.core.home import state_dir
from mlctl.optimize.kinds import kind_of
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.optimize.result.evidence import OptimizeReport, evidence_document, manifest_evidence
from mlctl.optimize.variants.choice import Judged
from mlctl.optimize.variants.device import RunDevice
from mlctl.registry.names import bundle_name
from mlctl.services.model.golden import load_golden, load_golden_features
from mlctl.services.model.padding import LengthPadding
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.session import open_session
from mlctl.services.model.transform import load_transform
from mlctl.services.model.warmup import check_padding


def seal_bundle(exported: ExportedModel, report: OptimizeReport, chosen: Judged) -> VerifiedBundle:
    """Seal the chosen variant's files and evidence under the state directory, by digest.

    PARITY_FAILED if the manifest pads sequences and padding changes the answers.
    """
    model, kind = chosen.variant.model, kind_of(exported.prepared.source)
    assert model is not None
    store = state_dir("bundles")
    with scratch_directory(store) as scratch:
        kind.write_files(exported, model, scratch)
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
    served = kind_of(source).served(exported, variant)
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
        input_constraints=served.input_constraints,
        generation=served.generation,
        transform=None if prepared.transform is None else prepared.transform.manifest_entry(),
        variant=ManifestVariant(
            recipe=variant.recipe,
            precision=variant.precision,
            target=device.target.value,
            opset=variant.measured.opset,
        ),
        batching=served.batching,
        evidence=manifest_evidence(variant.measured, exported.baseline.metric),
    )


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
