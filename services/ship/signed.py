"""Where signatures are asked for: by commands that name a bundle or a Bento, and at a start."""

from __future__ import annotations

from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle, verify
from services.layout import Packed, is_bundle, unpack
from services.ship.signing import check, signature_beside, signature_in
from services.store import DIGEST_LABEL, BentoInfo, find_bento


def find_signable(what: str) -> list[tuple[VerifiedBundle, Path]]:
    """The verified bundles of `what`, each with the place of its signature.

    `what` is a bundle's folder, or NAME:VERSION or NAME of a Bento in the store. Raises as
    `verify`, `unpack` and `find_bento` do.
    """
    folder = Path(what)
    if is_bundle(folder):
        root = folder.absolute()
        return [(verify(root), signature_beside(root))]
    return _in_bento(find_bento(what))


def require_signatures(bento: BentoInfo, public_key: Path | None) -> None:
    """Prove the signatures of a Bento before it is started; nothing if none are asked for.

    SIGNATURE_INVALID if one is missing or wrong.
    """
    if public_key is None:
        return
    for bundle, signature in _in_bento(bento):
        check(bundle, public_key, signature)


def require_served(packed: Packed, public_key: Path | None, source: Path | None) -> None:
    """In a server: prove the bundles that it loads, whose Bento's sources are in `source`.

    Without a Bento (`source` None) a signature is looked for beside its bundle.
    """
    if public_key is None:
        return
    for bundle in packed.bundles:
        name = bundle.manifest.name
        place = signature_beside(bundle.root) if source is None else signature_in(source, name)
        check(bundle, public_key, place)


def _in_bento(bento: BentoInfo) -> list[tuple[VerifiedBundle, Path]]:
    packed = unpack(bento.source)
    if bento.labels.get(DIGEST_LABEL) != packed.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"{bento.tag} does not hold the models of its label"
        )
    return [(each, signature_in(bento.source, each.manifest.name)) for each in packed.bundles]
