"""Which bundle this installation of the package serves.

A Bento made by mlctl has its bundle's digest beside it, in `model.digest`: the manifest
names the digest of every file but its own.
"""

from __future__ import annotations

from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MANIFEST_NAME
from bundle.verify import VerifiedBundle, verify
from services.settings import Settings

BESIDE = Path(__file__).resolve().parents[1] / "model"


def digest_file(root: Path) -> Path:
    """Where the digest is written that the bundle in folder `root` must have."""
    return root.with_name(f"{root.name}.digest")


def find_bundle(settings: Settings, beside: Path = BESIDE) -> VerifiedBundle:
    """The verified bundle to serve; MANIFEST_INVALID says how to get one.

    DIGEST_MISMATCH if the one beside the package is not the one of its digest file.
    """
    root = settings.bundle or beside
    if not (root / MANIFEST_NAME).is_file():
        raise MlctlError(
            ErrorCode.MANIFEST_INVALID,
            f"there is no bundle at {root}",
            f"Fetch one: `mlctl pull NAME --out {beside.name}`, or set MLCTL_BUNDLE to its folder.",
        )
    return verify(root, None if settings.bundle else _expected(beside))


def _expected(beside: Path) -> str | None:
    path = digest_file(beside)
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="backslashreplace").removesuffix("\n")
