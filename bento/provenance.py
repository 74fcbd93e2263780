"""The origin of a digest: source run, optimized version and Bentos, as far as they still exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Manifest
from bundle.verify import read_manifest
from services.runtime.bento_layout import model_folder
from services.runtime.bento_store import DIGEST_LABEL, BentoInfo

if TYPE_CHECKING:
    from registry.catalog import ModelRow, PublishedModel

_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_ORIGIN = ("source", "optimized", "variant", "evidence")
_HINT = "`mlctl models` and `mlctl status` show digests."


def require_digest(text: str) -> None:
    """Raise INVALID_INPUT unless `text` is a digest or at least its first six digits."""
    if not _PREFIX.fullmatch(text):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{text!r} is not a digest, nor at least six digits of its start",
            _HINT,
        )


def full_digest(text: str, digests: Iterable[str]) -> str:
    """Return the one digest that begins with `text`; INVALID_INPUT or NOT_FOUND."""
    require_digest(text)
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


def origin_of(digest: str, bentos: Sequence[BentoInfo], rows: Sequence[ModelRow]) -> dict[str, Any]:
    """Return the origin as --json shows it; null where nothing is left.

    For the digest of a Bento with several models, `models` has the origin of each. `bentos` are
    all that hold the digest, those of this digest itself first.
    """
    holders = sorted(
        (each for each in bentos if digest in (_digest(each), *each.digests.values())),
        key=lambda each: _digest(each) != digest,
    )
    bento = next(iter(holders), None)
    models = bento.digests if bento is not None and digest == _digest(bento) else {}
    return {
        **(dict.fromkeys(_ORIGIN) if models else _model_origin(digest, bento, rows)),
        "models": [
            {"name": name, "digest": each, **_model_origin(each, bento, rows)}
            for name, each in models.items()
        ],
        "bentos": [each.tag for each in holders],
    }


def _digest(bento: BentoInfo) -> str | None:
    return bento.labels.get(DIGEST_LABEL)


def _model_origin(digest: str, bento: BentoInfo | None, rows: Sequence[ModelRow]) -> dict[str, Any]:
    published = _published(digest, rows)
    manifest = _manifest(bento, digest)
    return {
        "source": _source(manifest, published, rows),
        "optimized": _optimized(published, rows),
        "variant": manifest.variant.model_dump() if manifest else None,
        "evidence": manifest.evidence.model_dump() if manifest else None,
    }


def _published(digest: str, rows: Sequence[ModelRow]) -> PublishedModel | None:
    from registry.mlflow_catalog import MlflowCatalog

    if all(row.digest != digest for row in rows):
        return None
    return MlflowCatalog().find_by_digest(digest)


def _manifest(bento: BentoInfo | None, digest: str) -> Manifest | None:
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
