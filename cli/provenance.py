"""The chain behind one digest: source run, optimized version, Bento, rollouts, aliases.

Each link is asked where it is kept: the registry, the Bento store, the journal. A link that is
not there any more is left out, and the others are still told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from bundle.manifest import Manifest
    from registry.catalog import ModelRow, PublishedModel
    from rollout.journal.records import Deployment, Rollout
    from services.runtime.bento_store import BentoInfo

_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_DIGEST_LABEL = "mlctl.digest"
_ORIGIN = ("source", "optimized", "variant", "evidence")


@dataclass(frozen=True, slots=True)
class ProvenanceSources:
    """Everything on this machine and in its registry that may bear a digest."""

    bentos: Sequence[BentoInfo]
    rows: Sequence[ModelRow]
    rollouts: Sequence[Rollout]
    deployments: Sequence[Deployment]

    def digests(self) -> set[str]:
        revisions = [
            each for rollout in self.rollouts for each in (rollout.live, rollout.candidate)
        ]
        revisions += [deployment.live for deployment in self.deployments]
        labels = (bento.labels.get(_DIGEST_LABEL) for bento in self.bentos)
        inside = (digest for bento in self.bentos for digest in bento.digests.values())
        found = {*labels, *inside, *(row.digest for row in self.rows)} - {None}
        return {revision.digest for revision in revisions} | {str(digest) for digest in found}


def known() -> ProvenanceSources:
    """Ask the Bento store, the registry and the journal. REGISTRY_UNAVAILABLE."""
    from registry.mlflow_catalog import MlflowCatalog
    from rollout.journal import paths
    from rollout.journal.journal import Journal
    from services.runtime.bento_store import find_bento, list_bentos

    bentos = tuple(map(find_bento, list_bentos()))
    with Journal(paths.journal()) as journal:
        rollouts, deployments = journal.rollouts(), journal.deployments()
    return ProvenanceSources(bentos, MlflowCatalog().list_models(), rollouts, deployments)


def require_digest(text: str) -> None:
    """INVALID_INPUT for what is neither a digest nor six digits of its start or more."""
    if not _PREFIX.fullmatch(text):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} is not a digest, nor at least six digits of its start",
            "`mlctl models` and `mlctl status` show digests.",
        )


def full_digest(text: str, digests: Iterable[str]) -> str:
    """The one digest that begins with `text`; INVALID_INPUT or NOT_FOUND."""
    require_digest(text)
    found = sorted(digest for digest in digests if digest.startswith(text))
    if not found:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"no digest that begins with {text} is in the registry, the Bento store or a rollout",
            "`mlctl models` and `mlctl status` show digests.",
        )
    if len(found) > 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{len(found)} digests begin with {text}: {', '.join(each[:16] for each in found[:3])}",
            "Give more digits.",
        )
    return found[0]


def chain(digest: str, known: ProvenanceSources) -> dict[str, Any]:
    """The chain as --json shows it; what is not known any more is null.

    Where the digest is that of a Bento with several models, `models` has the origin of each.
    `bentos` are all that hold it, those first that are of this digest themselves.
    """
    bentos = sorted(
        (each for each in known.bentos if _holds(each, digest)),
        key=lambda each: each.labels.get(_DIGEST_LABEL) != digest,
    )
    bento = next(iter(bentos), None)
    inside = bento.digests if bento and digest == bento.labels.get(_DIGEST_LABEL) else {}
    origin = dict.fromkeys(_ORIGIN) if inside else _origin(digest, bento, known)
    return {
        "digest": digest,
        **origin,
        "models": [
            {"name": name, "digest": each, **_origin(each, bento, known)}
            for name, each in inside.items()
        ],
        "bentos": [each.tag for each in bentos],
        "rollouts": [_rollout(each) for each in reversed(known.rollouts) if _bears(each, digest)],
        "serves": [
            each.name
            for each in known.deployments
            if digest in (each.live.digest, *each.live.digests)
        ],
        "champion_of": [each.name for each in known.deployments if _is_champion(each, digest)],
    }


def _origin(digest: str, bento: BentoInfo | None, known: ProvenanceSources) -> dict[str, Any]:
    """Where one model is from, and what was proved of it."""
    published = _published(digest, known.rows)
    manifest = _manifest(bento, digest)
    found = (
        _source(manifest, published, known.rows),
        _optimized(published, known.rows),
        manifest.variant.model_dump() if manifest else None,
        manifest.evidence.model_dump() if manifest else None,
    )
    return dict(zip(_ORIGIN, found, strict=True))


def _published(digest: str, rows: Sequence[ModelRow]) -> PublishedModel | None:
    from registry.mlflow_catalog import MlflowCatalog

    known = any(row.digest == digest for row in rows)
    return MlflowCatalog().find_by_digest(digest) if known else None


def _holds(bento: BentoInfo, digest: str) -> bool:
    """Whether that is its digest, or one of its models'."""
    return digest in (bento.labels.get(_DIGEST_LABEL), *bento.digests.values())


def _manifest(bento: BentoInfo | None, digest: str) -> Manifest | None:
    from bundle.verify import read_manifest
    from services.runtime.bento_layout import model_folder

    if bento is None:
        return None
    name = next((name for name, each in bento.digests.items() if each == digest), None)
    return read_manifest(model_folder(bento.source, name))


def _source(
    manifest: Manifest | None, published: PublishedModel | None, rows: Sequence[ModelRow]
) -> dict[str, Any] | None:
    uri = manifest.source.uri if manifest else published.source_uri if published else None
    if uri is None:
        return None
    return {
        "uri": uri,
        "run": manifest.source.run_id if manifest else None,
        "aliases": _aliases(uri, rows),
    }


def _optimized(published: PublishedModel | None, rows: Sequence[ModelRow]) -> dict[str, Any] | None:
    if published is None:
        return None
    return {
        "uri": published.uri,
        "run": published.run_id,
        "aliases": _aliases(published.uri, rows),
    }


def _aliases(uri: str, rows: Sequence[ModelRow]) -> list[str]:
    return [
        alias for row in rows if f"models:/{row.name}/{row.version}" == uri for alias in row.aliases
    ]


def _bears(rollout: Rollout, digest: str) -> bool:
    return digest in (rollout.candidate.digest, *rollout.candidate.digests)


def _is_champion(deployment: Deployment, digest: str) -> bool:
    """Whether the alias was written to it, or to all models of a Bento, which it is or is in."""
    live, champion = deployment.live, deployment.champion
    return champion == digest or (champion == live.digest and digest in live.digests)


def _rollout(rollout: Rollout) -> dict[str, Any]:
    from cli.rollouts import rollout_document

    return {"deployment": rollout.deployment, **rollout_document(rollout)}
