"""A Bento in a folder with what all have, made without BentoML: for what only moves it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.layout.bento_store import (
    CONTENT_LABEL,
    DIGEST_LABEL,
    SERVER_LABEL,
    SERVER_VERSION,
    BentoInfo,
    read_bento,
)


def small_bento(root: Path, bundle: VerifiedBundle) -> BentoInfo:
    """Write the Bento of `bundle` to the folder `root`, which has what a server left, too."""
    shutil.copytree(bundle.root, root / "src" / "model")
    (root / "src" / "services").mkdir()
    (root / "src" / "services" / "scorer.py").write_text("SCORES = 1\n")
    (root / "README.md").write_text(f"# {bundle.manifest.name}\n")
    (root / "src" / "__pycache__").mkdir()
    (root / "src" / "__pycache__" / "left.pyc").write_bytes(b"by a server")
    told = {
        "name": bundle.manifest.name,
        "version": bundle.digest[:12],
        "labels": {
            DIGEST_LABEL: bundle.digest,
            CONTENT_LABEL: "0" * 64,
            SERVER_LABEL: SERVER_VERSION,
        },
    }
    (root / "bento.yaml").write_text(json.dumps(told))
    return read_bento(root)
