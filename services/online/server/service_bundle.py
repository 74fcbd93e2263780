"""Which bundles this installation of the package serves.

$MLCTL_BUNDLE is the folder of a bundle; otherwise they are next to the package, as in a Bento.
"""

from __future__ import annotations

from pathlib import Path

import mlctl
from mlctl.bundle.verify import verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import (
    MODEL_FOLDER,
    MODELS_FILE,
    BentoContents,
    is_bundle,
    read_contents,
)
from mlctl.services.layout.signing import require_signed
from mlctl.services.online.settings import ServerSettings

BESIDE = Path(str(mlctl.__file__)).parents[1]


def find_bundles(settings: ServerSettings, beside: Path = BESIDE) -> BentoContents:
    """Return the verified bundles to serve; MANIFEST_INVALID says how to get one.

    DIGEST_MISMATCH if a bundle next to the package is not the one that the Bento names.
    """
    root = settings.bundle or beside / MODEL_FOLDER
    if settings.bundle is None and (beside / MODELS_FILE).is_file():
        return read_contents(beside)
    if not is_bundle(root):
        raise MlctlError(
            ErrorCode.MANIFEST_INVALID,
            f"there is no bundle at {root}",
            f"Fetch one: `mlctl pull NAME --out {MODEL_FOLDER}`, or set MLCTL_BUNDLE to its "
            "folder.",
        )
    return BentoContents((verify(root),)) if settings.bundle else read_contents(beside)


def find_trusted_bundles(settings: ServerSettings, beside: Path = BESIDE) -> BentoContents:
    """Return what `find_bundles` finds, signed by the key that `settings` require, if any.

    SIGNATURE_INVALID for a bundle that is not signed by it.
    """
    packed = find_bundles(settings, beside)
    for bundle in packed.bundles:
        require_signed(bundle, settings.require_signature)
    return packed
