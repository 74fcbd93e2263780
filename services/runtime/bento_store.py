"""The local Bento store: where it is, and which Bento a tag means.

Read from its files (`bentos/NAME/VERSION/bento.yaml`, `bentos/NAME/latest`): importing
BentoML takes seconds and fixes its home for the whole process.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.home import bento_home

DIGEST_LABEL = "mlctl.digest"
CONTENT_LABEL = "mlctl.content"
MODELS_LABEL = "mlctl.models"
LATEST = "latest"
_FEWEST = 4  # Characters of a version's start that name it.
_TAG = re.compile(r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?))?")


@dataclass(frozen=True, slots=True)
class BentoInfo:
    """A Bento in the store: `tag` is NAME:VERSION, `path` its directory."""

    tag: str
    path: Path
    labels: Mapping[str, str]

    @property
    def digests(self) -> Mapping[str, str]:
        """Those of its models by their names, if it has several; see `Together.told`."""
        pairs = (pair.partition("=") for pair in self.labels.get(MODELS_LABEL, "").split())
        return {name: digest for name, _, digest in pairs}

    @property
    def source(self) -> Path:
        """Where its code and its bundles are; see `services.runtime.bento_layout`."""
        return self.path / "src"


def find_bento(tag: str) -> BentoInfo:
    """The Bento that NAME:VERSION, NAME:latest or NAME means; at least 4 characters of the
    version are enough where only one begins with them.

    BENTO_NOT_FOUND names what is near; INVALID_INPUT if `tag` is not of that form.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{tag!r} is not a Bento's tag", "Write it as NAME:VERSION."
        )
    folder = _bentos() / match[1]
    version = match[2] or LATEST
    if version == LATEST:
        version = _read_latest(folder / LATEST)
    elif not (folder / version).exists():
        version = _begun(match[1], version)
    path = folder / version
    if not version or not (path / "bento.yaml").is_file():
        raise _not_found(tag, match[1])
    return BentoInfo(f"{match[1]}:{version}", path, _labels(path))


def list_bentos() -> list[str]:
    """The tags of all Bentos in the store, sorted."""
    found = _bentos().glob("*/*/bento.yaml")
    return sorted(f"{path.parent.parent.name}:{path.parent.name}" for path in found)


def _bentos() -> Path:
    return bento_home() / "bentos"


def _begun(name: str, start: str) -> str:
    """The one version of `name` that begins with `start`; empty if there is none.

    A flavour (VERSION-FLAVOUR) is another Bento of the same bundle: it is meant where it is said.
    """
    digits, _, flavour = start.partition("-")
    found = [
        version
        for version in (
            tag.partition(":")[2] for tag in list_bentos() if tag.startswith(f"{name}:")
        )
        if version.startswith(digits) and version.partition("-")[2] == flavour
    ]
    if len(digits) < _FEWEST or not found:
        return ""
    if len(found) > 1:
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"'{name}:{start}' may be any of {', '.join(found)}",
            "Write more of its version.",
        )
    return found[0]


def _read_latest(path: Path) -> str:
    """The version that was built last; empty if there is none."""
    return path.read_text().strip() if path.is_file() else ""


def read_bento(path: Path) -> BentoInfo:
    """The Bento in the folder `path`, wherever that is; its tag is the one that it says."""
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
        ErrorCode.BENTO_NOT_FOUND, f"the Bento {path.parent.name}:{path.name} is damaged"
    )


def _not_found(tag: str, name: str) -> MlctlError:
    known = list_bentos()
    near = [one for one in known if one.partition(":")[0] == name]
    near = near or difflib.get_close_matches(tag, known, n=3, cutoff=0.4)
    rest = f"; near: {', '.join(near[:5])}" if near else "; the store has none of a similar name"
    return MlctlError(ErrorCode.BENTO_NOT_FOUND, f"no Bento {tag!r}{rest}")
