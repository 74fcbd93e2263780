"""The chain behind one digest: its origin, rollouts and aliases, as far as they still exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from registry.catalog import ModelRow
    from rollout.journal.records import Deployment, Rollout
    from services.runtime.bento_store import BentoInfo


@dataclass(frozen=True, slots=True)
class ProvenanceSources:
    """The Bento store, the registry's versions, and the journal's rollouts and deployments."""

    bentos: Sequence[BentoInfo]
    rows: Sequence[ModelRow]
    rollouts: Sequence[Rollout]
    deployments: Sequence[Deployment]

    def digests(self) -> set[str]:
        from bento.provenance import digests_of

        revisions = [
            each for rollout in self.rollouts for each in (rollout.live, rollout.candidate)
        ]
        revisions += [deployment.live for deployment in self.deployments]
        return {each.digest for each in revisions} | digests_of(self.bentos, self.rows)


def sources() -> ProvenanceSources:
    """Read the Bento store, the registry and the journal. REGISTRY_UNAVAILABLE."""
    from registry.mlflow_catalog import MlflowCatalog
    from rollout.journal import paths
    from rollout.journal.journal import Journal
    from services.runtime.bento_store import find_bento, list_bentos

    bentos = tuple(map(find_bento, list_bentos()))
    with Journal(paths.journal()) as journal:
        rollouts, deployments = journal.rollouts(), journal.deployments()
    return ProvenanceSources(bentos, MlflowCatalog().list_models(), rollouts, deployments)


def chain(digest: str, found: ProvenanceSources) -> dict[str, Any]:
    """Return the chain as --json shows it; null where nothing is left."""
    from bento.provenance import origin_of
    from cli.rollouts import rollout_document

    return {
        "digest": digest,
        **origin_of(digest, found.bentos, found.rows),
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
