"""Find and verify the signatures of a bundle or of a Bento's bundles."""

from __future__ import annotations

from pathlib import Path

from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import is_bundle, read_contents
from mlctl.services.layout.bento_store import DIGEST_LABEL, BentoInfo, find_bento
from mlctl.services.layout.signing import check_signature, signature_beside, signature_in


def find_signable(reference: str) -> list[tuple[VerifiedBundle, Path]]:
    """Return the verified bundles of `reference`, each with the path of its signature.

    `reference` is a bundle's folder, or NAME:VERSION or NAME of a Bento in the store. Raises as
    `verify`, `read_contents` and `find_bento` do.
    """
    folder = Path(reference)
    if is_bundle(folder):
        root = folder.absolute()
        return [(verify(root), signature_beside(root))]
    return _in_bento(find_bento(reference))


def verify_bento(bento: BentoInfo, public_key: Path | None) -> None:
    """Verify every file of a Bento's bundles, and their signatures if there is a key.

    Raises as `read_contents`; SIGNATURE_INVALID if a signature is missing or wrong.
    """
    for bundle, signature in _in_bento(bento):
        if public_key is not None:
            check_signature(bundle, public_key, signature)


def _in_bento(bento: BentoInfo) -> list[tuple[VerifiedBundle, Path]]:
    packed = read_contents(bento.source)
    if bento.labels.get(DIGEST_LABEL) != packed.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"{bento.tag} does not hold the models that its label names"
        )
    return [(each, signature_in(bento.source, each.manifest.name)) for each in packed.bundles]
