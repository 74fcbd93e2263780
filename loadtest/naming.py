"""Which model of which server or Bento is measured, as the command line names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import read_manifest
from services.runtime.bento_layout import is_bundle, model_folder, read_bento_manifest


def split_target(target: str) -> tuple[str, str | None]:
    """URL/NAME or TAG/NAME as the server or Bento, and the model; None where none is named."""
    if "://" not in target:
        bento, _, name = target.partition("/")
        return bento, name or None
    parts = urlsplit(target)
    if not parts.netloc:  # no server: whoever asks it says so
        return target, None
    return urlunsplit(parts._replace(path="", query="", fragment="")), parts.path.strip("/") or None


def asked_model(source: Path, name: str | None) -> str | None:
    """The model that `name` means in the Bento with these sources; MODEL_NOT_FOUND.

    Without one its pipeline, or the first of its models; None for a Bento that is not ours.
    """
    known = tuple(_known(source))
    if name is None:
        return next(iter(known), None)
    if known and name not in known:
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND, f"the Bento has no model {name!r}; it has {', '.join(known)}"
        )
    return name


def _known(source: Path) -> Iterator[str]:
    """What can be asked, by name, the one that is meant without a name first."""
    together = read_bento_manifest(source)
    if together is None:
        folder = model_folder(source)
        if is_bundle(folder):
            yield read_manifest(folder).name
        return
    if together.pipeline is not None:
        yield together.name
    yield from together.names


def folder_of(source: Path, name: str | None) -> Path:
    """The bundle of the model `name`; of a pipeline as a whole that of its first stage."""
    together = read_bento_manifest(source)
    if together is None:
        return model_folder(source)
    if together.pipeline is not None and name in (None, together.name):
        return model_folder(source, together.pipeline.stages[0])
    return model_folder(source, name)
