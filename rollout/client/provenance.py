"""The chain behind one digest: its origin, rollouts and aliases, as far as they still exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.bento.provenance import BundleFacts
    from mlctl.registry.catalog import ModelRow
    from mlctl.rollout.journal.records import Deployment, Rollout
    from mlctl.services.layout.bento_store import BentoInfo


@dataclass(frozen=True, slots=True)
class ProvenanceSources:
    """The Bento store, the registry's versions, and the journal's rollouts and deployments."""

    bentos: Sequence[BentoInfo]
    rows: Sequence[ModelRow]
    rollouts: Sequence[Rollout]
    deployments: Sequence[Deployment]

    def digests(self) -> set[str]:
        from mlctl.bento.provenance import digests_of

        revisions = [
            each for rollout in self.rollouts for each in (rollout.live, rollout.candidate)
        ]
        revisions += [deployment.live for deployment in self.deployments]
        return {each.digest for each in revisions} | digests_of(self.bentos, self.rows)


def sources() -> ProvenanceSources:
    """Read the Bento store, the registry and the journal. REGISTRY_UNAVAILABLE."""
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.rollout.journal import paths
    from mlctl.rollout.journal.journal import Journal
    from mlctl.services.layout.bento_store import find_bento, list_bentos

    bentos = tuple(map(find_bento, list_bentos()))
    with Journal(paths.journal()) as journal:
        rollouts, deployments = journal.rollouts(), journal.deployments()
    return ProvenanceSources(bentos, MlflowCatalog().list_models(), rollouts, deployments)


def find_digest(reference: str, found: ProvenanceSources) -> tuple[str, BundleFacts | None]:
    """Return the digest that `reference` names, and the bundle if `reference` is its folder.

    It is a bundle's folder, a Bento NAME:VERSION, the start of a digest, or a registered model as
    `mlctl build` takes it. INVALID_INPUT, NOT_FOUND, BENTO_NOT_FOUND or MODEL_NOT_FOUND.
    """
    from mlctl.bento.provenance import BundleFacts, full_digest, is_digest
    from mlctl.bundle.manifest import MANIFEST_NAME
    from mlctl.bundle.verify import verify
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.services.layout.bento_store import DIGEST_LABEL, find_bento

    if Path(reference, MANIFEST_NAME).is_file() or reference.startswith(("./", "../", "/")):
        verified = verify(Path(reference))
        return verified.digest, BundleFacts.read(verified.root)
    if ":" in reference and not reference.startswith("models:/"):
        found_bento = find_bento(reference)
        if DIGEST_LABEL not in found_bento.labels:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{found_bento.tag} has no digest: it was not built by mlctl",
                "Build it with `mlctl build NAME`.",
            )
        return found_bento.labels[DIGEST_LABEL], None
    if is_digest(reference) and reference not in {row.name for row in found.rows}:
        return full_digest(reference, found.digests()), None
    return MlflowCatalog().select_optimized(reference).published.digest, None


def chain(
    digest: str, found: ProvenanceSources, facts: BundleFacts | None = None
) -> dict[str, Any]:
    """Return the chain as --json shows it; null where nothing is left."""
    from mlctl.bento.provenance import origin_of
    from mlctl.rollout.client.rendering import rollout_document

    return {
        "digest": digest,
        **origin_of(digest, found.bentos, found.rows, facts),
        "rollouts": [
            {"deployment": each.deployment, **rollout_document(each)}
            for each in reversed(found.rollouts)
            if digest in (each.candidate.digest, *each.candidate.digests)
        ],
        "serves": [
            each.name
            for each in found.deployments
            if digest in (each.live.digest, *each.live.digests)
        ],
        "champion_of": [each.name for each in found.deployments if _is_champion(each, digest)],
    }


def _is_champion(deployment: Deployment, digest: str) -> bool:
    """Return whether the alias is on this digest, or on all models of a Bento that holds it."""
    live, champion = deployment.live, deployment.champion
    return champion == digest or (champion == live.digest and digest in live.digests)
