"""From the Bento that a user names to the revision that a deployment serves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from mlctl.bento.interface import interface_of
from mlctl.bento.signed import verify_bento
from mlctl.bundle.interface import to_document
from mlctl.bundle.manifest import EVIDENCE_NAME
from mlctl.bundle.verify import read_manifest
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import Revision
from mlctl.rollout.domain.statistics.scores import ProvedScore
from mlctl.services.layout.bento_layout import model_folder, read_bento_manifest
from mlctl.services.layout.bento_store import SERVER_LABEL, SERVER_VERSION, find_bento
from mlctl.services.online.settings import load_settings

_LABELS = ("digest", "model", "version", "source")


def find_revision(bento: str) -> Revision:
    """Return the revision in the Bento store for `bento` (NAME:VERSION, or NAME for the newest).

    BENTO_NOT_FOUND, or INVALID_INPUT for a Bento that `mlctl build` did not make, or an older one
    whose server the proxy cannot reach. What `mlctl.bundle.verify` raises if a file of it is
    altered or missing.
    SIGNATURE_INVALID if MLCTL_REQUIRE_SIGNATURE is set and a bundle is not signed by that key.
    """
    found = find_bento(bento)
    missing = [name for name in _LABELS if f"mlctl.{name}" not in found.labels]
    if missing:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{found.tag} has no label mlctl.{missing[0]}: it was not built by mlctl",
            "Build it with `mlctl build NAME`.",
        )
    if found.labels.get(SERVER_LABEL) != SERVER_VERSION:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{found.tag} contains the server of another mlctl, which cannot serve a deployment",
            "Build it again with `mlctl build NAME`.",
        )
    verify_bento(found, load_settings().require_signature)
    labels = {name: found.labels[f"mlctl.{name}"] for name in _LABELS}
    evidence = read_manifest(model_folder(found.source)).evidence
    together = read_bento_manifest(found.source)
    models = () if together is None else tuple(together.models[name] for name in together.names)
    return Revision(
        found.tag,
        **labels,
        agreement=evidence.agreement,
        models=models,
        interface=to_document(interface_of(found.source)),
        scores=_scores(found.source, [None] if together is None else together.names),
    )


def _scores(source: Path, names: Iterable[str | None]) -> tuple[ProvedScore, ...]:
    """The scores of a Bento's models, of those that were judged on labelled rows."""
    found = []
    for name in names:
        folder = model_folder(source, name)
        manifest = read_manifest(folder)
        proved = manifest.evidence
        if proved.metric is None or proved.score is None:
            continue
        document = json.loads((folder / EVIDENCE_NAME).read_bytes())
        found.append(
            ProvedScore(
                manifest.name,
                proved.metric,
                proved.score,
                higher_is_better=document["higher_is_better"],
                rows=proved.rows,
                data=document["data"]["sha256"],
                code=document["metric_code"],
            )
        )
    return tuple(found)
