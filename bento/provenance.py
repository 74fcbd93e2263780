"""The origin of a digest: source run, optimized version and Bentos, as far as they still exist."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlctl.bundle.manifest import EVIDENCE_NAME, Manifest
from mlctl.bundle.verify import read_manifest
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import model_folder
from mlctl.services.layout.bento_store import DIGEST_LABEL, BentoInfo

if TYPE_CHECKING:
    from mlctl.registry.catalog import ModelRow, PublishedModel

_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_ORIGIN = ("source", "optimized", "signature", "generation", "variant", "variants", "evidence")
_HINT = "`mlctl models` and `mlctl status` show digests."


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What a bundle says of itself: its manifest, and its evidence.json."""

    manifest: Manifest
    evidence: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read both files of the bundle in `folder`, without checking the other files."""
        return cls(read_manifest(folder), json.loads((folder / EVIDENCE_NAME).read_bytes()))


def is_digest(text: str) -> bool:
    """Return whether `text` is a digest or at least its first four digits."""
    return _PREFIX.fullmatch(text) is not None


def full_digest(text: str, digests: Iterable[str]) -> str:
    """Return the one digest that begins with `text`; INVALID_INPUT or NOT_FOUND."""
    if not is_digest(text):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} is not a digest, nor at least four digits of its start",
            _HINT,
        )
    found = sorted({digest for digest in digests if digest.startswith(text)})
    if not found:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"no digest that begins with {text} is in the registry, the Bento store or a rollout",
            _HINT,
        )
    if len(found) > 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{len(found)} digests begin with {text}: {', '.join(each[:16] for each in found[:3])}",
            "Give more digits.",
        )
    return found[0]


def digests_of(bentos: Sequence[BentoInfo], rows: Sequence[ModelRow]) -> set[str]:
    """Return every digest in the Bento store and in the registry."""
    labels = (bento.labels.get(DIGEST_LABEL) for bento in bentos)
    models = (digest for bento in bentos for digest in bento.digests.values())
    return {str(each) for each in (*labels, *models, *(row.digest for row in rows)) if each}


def origin_of(
    digest: str,
    bentos: Sequence[BentoInfo],
    rows: Sequence[ModelRow],
    facts: BundleFacts | None = None,
) -> dict[str, Any]:
    """Return the origin as --json shows it; null where nothing is left.

    For the digest of a Bento with several models, `models` has the origin of each. `bentos` are
    all that hold the digest, those of this digest itself first. Without `facts` the bundle is read
    from a Bento, else fetched from the registry.
    """
    holders = sorted(
        (each for each in bentos if digest in (_digest(each), *each.digests.values())),
        key=lambda each: _digest(each) != digest,
    )
    bento = next(iter(holders), None)
    models = bento.digests if bento is not None and digest == _digest(bento) else {}
    return {
        **(dict.fromkeys(_ORIGIN) if models else _model_origin(digest, bento, rows, facts)),
        "models": [
            {"name": name, "digest": each, **_model_origin(each, bento, rows, None)}
            for name, each in models.items()
        ],
        "bentos": [each.tag for each in holders],
    }


def _digest(bento: BentoInfo) -> str | None:
    return bento.labels.get(DIGEST_LABEL)


def _model_origin(
    digest: str, bento: BentoInfo | None, rows: Sequence[ModelRow], facts: BundleFacts | None
) -> dict[str, Any]:
    published = _published(digest, rows)
    facts = facts or _find_facts(digest, bento, published)
    manifest = facts.manifest if facts else None
    return {
        "source": _source(manifest, published, rows),
        "optimized": _optimized(published, rows),
        "signature": manifest.signature.model_dump(mode="json") if manifest else None,
        "generation": manifest.generation and manifest.generation.model_dump()
        if manifest
        else None,
        "variant": manifest.variant.model_dump() if manifest else None,
        "variants": [_variant(each) for each in facts.evidence["variants"]] if facts else None,
        "evidence": manifest.evidence.model_dump() if manifest else None,
    }


def _variant(record: dict[str, Any]) -> dict[str, Any]:
    """Return one variant that `mlctl optimize` tried: its size in bytes, and its score if any."""
    proof = record.get("proof") or {}
    score = proof.get("score") or {}
    return {
        "recipe": record["recipe"],
        "chosen": record.get("chosen"),
        "failure": record.get("failure"),
        "size_bytes": proof.get("size_bytes"),
        "score": score.get("value"),
        "drop_high": score["drop"]["high"] if score else None,
        "agreement": proof["parity"]["agreement"] if proof else None,
    }


def _published(digest: str, rows: Sequence[ModelRow]) -> PublishedModel | None:
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    if all(row.digest != digest for row in rows):
        return None
    return MlflowCatalog().find_by_digest(digest)


def _find_facts(
    digest: str, bento: BentoInfo | None, published: PublishedModel | None
) -> BundleFacts | None:
    """Read the bundle from `bento`, else fetch it from the registry."""
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    if bento is not None:
        name = next((name for name, each in bento.digests.items() if each == digest), None)
        return BundleFacts.read(model_folder(bento.source, name))
    if published is None:
        return None
    with tempfile.TemporaryDirectory(prefix="mlctl-show-") as folder:
        return BundleFacts.read(MlflowCatalog().fetch_bundle(published, Path(folder, "model")).root)


def _source(
    manifest: Manifest | None, published: PublishedModel | None, rows: Sequence[ModelRow]
) -> dict[str, Any] | None:
    uri = manifest.source.uri if manifest else published.source_uri if published else None
    if uri is None:
        return None
    run = manifest.source.run_id if manifest else None
    return {"uri": uri, "run": run, "aliases": _aliases(uri, rows)}


def _optimized(published: PublishedModel | None, rows: Sequence[ModelRow]) -> dict[str, Any] | None:
    if published is None:
        return None
    aliases = _aliases(published.uri, rows)
    return {"uri": published.uri, "run": published.run_id, "aliases": aliases}


def _aliases(uri: str, rows: Sequence[ModelRow]) -> list[str]:
    return [
        alias for row in rows if f"models:/{row.name}/{row.version}" == uri for alias in row.aliases
    ]
