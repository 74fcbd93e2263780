"""The local Bento store: find Bentos by tag.

It reads the store's files (`bentos/NAME/VERSION/bento.yaml`, `bentos/NAME/latest`): importing
BentoML takes seconds and sets its home for the whole process.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import bento_home

DIGEST_LABEL = "mlctl.digest"
CONTENT_LABEL = "mlctl.content"
MODELS_LABEL = "mlctl.models"
# How the proxy of a deployment reaches the server in a Bento: 2 is with infer requests over HTTP/2.
SERVER_LABEL, SERVER_VERSION = "mlctl.server", "2"
LATEST = "latest"
_MIN_PREFIX = 4  # characters of a version's start
_TAG = re.compile(r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?))?")


@dataclass(frozen=True, slots=True)
class BentoInfo:
    """A Bento in the store: `tag` is NAME:VERSION, `path` its directory."""

    tag: str
    path: Path
    labels: Mapping[str, str]

    @property
    def digests(self) -> Mapping[str, str]:
        """The digests of its models by name, if it has several; see `BentoManifest.label`."""
        pairs = (pair.partition("=") for pair in self.labels.get(MODELS_LABEL, "").split())
        return {name: digest for name, _, digest in pairs}

    @property
    def source(self) -> Path:
        """The folder of its code and its bundles; see `mlctl.services.layout.bento_layout`."""
        return self.path / "src"


def find_bento(tag: str) -> BentoInfo:
    """Find the Bento NAME:VERSION, NAME:latest or NAME.

    The start of the version, 4 characters or more, is enough if it is unique. BENTO_NOT_FOUND lists
    similar tags; INVALID_INPUT for another form.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{tag!r} is not a tag of a Bento",
            "Write it as NAME:VERSION, or NAME for the newest.",
        )
    folder = _bentos() / match[1]
    version = match[2] or LATEST
    if version == LATEST:
        version = _read_latest(folder / LATEST)
    elif not (folder / version).exists():
        version = _complete_version(match[1], version)
    path = folder / version
    if not version or not (path / "bento.yaml").is_file():
        raise _not_found(tag, match[1])
    return BentoInfo(f"{match[1]}:{version}", path, _labels(path))


def list_bentos() -> list[str]:
    """Return the tags of all Bentos in the store, sorted."""
    found = _bentos().glob("*/*/bento.yaml")
    return sorted(f"{path.parent.parent.name}:{path.parent.name}" for path in found)


def _bentos() -> Path:
    return bento_home() / "bentos"


def _complete_version(name: str, start: str) -> str:
    """Return the only version of `name` that begins with `start`; empty if there is none.

    VERSION-RUNTIME is another Bento of the same bundle, found only if `start` has that suffix.
    """
    digits, _, runtime = start.partition("-")
    found = [
        version
        for version in (
            tag.partition(":")[2] for tag in list_bentos() if tag.startswith(f"{name}:")
        )
        if version.startswith(digits) and version.partition("-")[2] == runtime
    ]
    if len(digits) < _MIN_PREFIX or not found:
        return ""
    if len(found) > 1:
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"'{name}:{start}' is ambiguous: {', '.join(found)}",
            "Write more of the version.",
        )
    return found[0]


def _read_latest(path: Path) -> str:
    """Return the version that was built last; empty if there is none."""
    return path.read_text().strip() if path.is_file() else ""


def read_bento(path: Path) -> BentoInfo:
    """Read the Bento in any folder `path`; its tag is the one in its `bento.yaml`."""
    document = _document(path)
    return BentoInfo(f"{document.get('name')}:{document.get('version')}", path, _labels(path))


def _labels(path: Path) -> Mapping[str, str]:
    labels = _document(path).get("labels") or {}
    if not isinstance(labels, dict):
        raise _damaged(path)
    return {str(key): str(value) for key, value in labels.items()}


def _document(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        document = yaml.safe_load((path / "bento.yaml").read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise _damaged(path) from error
    if not isinstance(document, dict):
        raise _damaged(path)
    return document


def _damaged(path: Path) -> MlctlError:
    return MlctlError(
        ErrorCode.BENTO_NOT_FOUND,
        f"the Bento {path.parent.name}:{path.name} is damaged: its bento.yaml cannot be read",
    )


def _not_found(tag: str, name: str) -> MlctlError:
    known = list_bentos()
    near = [one for one in known if one.partition(":")[0] == name]
    near = near or difflib.get_close_matches(tag, known, n=3, cutoff=0.4)
    if near:
        rest = f"; did you mean {' or '.join(near[:5])}?"
    else:
        rest = "; no tag in the store is similar" if known else "; the Bento store is empty"
    return MlctlError(ErrorCode.BENTO_NOT_FOUND, f"no Bento {tag!r}{rest}")
