"""The target of a measurement: a server or a Bento, and one of its models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from mlctl.bundle.verify import read_manifest
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import is_bundle, model_folder, read_bento_manifest


def split_target(target: str) -> tuple[str, str | None]:
    """Split URL/NAME or TAG/NAME into the server or Bento and the model; None without a name."""
    if "://" not in target:
        bento, _, name = target.partition("/")
        return bento, name or None
    parts = urlsplit(target)
    if not parts.netloc:  # not a server's URL; `parse_url` rejects it
        return target, None
    return urlunsplit(parts._replace(path="", query="", fragment="")), parts.path.strip("/") or None


def resolve_model(source: Path, name: str | None) -> str | None:
    """Return the model called `name` in the Bento with these sources; MODEL_NOT_FOUND.

    Without a name it is the pipeline, or the first model; None for a Bento of another tool.
    """
    names = tuple(_model_names(source))
    if name is None:
        return next(iter(names), None)
    if names and name not in names:
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND, f"the Bento has no model {name!r}; it has {', '.join(names)}"
        )
    return name


def _model_names(source: Path) -> Iterator[str]:
    """Yield the names of the models, the default one first."""
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
    """Return the bundle of the model `name`; for a pipeline, that of its first stage."""
    together = read_bento_manifest(source)
    if together is None:
        return model_folder(source)
    if together.pipeline is not None and name in (None, together.name):
        return model_folder(source, together.pipeline.stages[0])
    return model_folder(source, name)
