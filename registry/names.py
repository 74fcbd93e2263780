"""References to registered models: `models:/digits@candidate`, `digits/3`, `digits`.

Pure text handling. Names are limited to characters that need no quoting in MLflow's
search language and cannot move a terminal's cursor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable

OPTIMIZED_SUFFIX = "-optimized"

_SCHEME = "models:/"
_NAME = re.compile(r"[A-Za-z0-9_](?:[\w .-]{0,198}[\w.-])?", re.ASCII)
_ALIAS = re.compile(r"[A-Za-z0-9_][\w-]{0,254}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_BUNDLE_NAME_LENGTH = 63


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A registered model, with at most one of `version` and `alias`."""

    name: str
    version: str | None = None
    alias: str | None = None

    def __str__(self) -> str:
        if self.version is not None:
            return f"{_SCHEME}{self.name}/{self.version}"
        return f"{_SCHEME}{self.name}" + (f"@{self.alias}" if self.alias is not None else "")


def parse_ref(text: str) -> ModelRef:
    """Parse a model reference; INVALID_INPUT names the faulty part and shows the forms."""
    body = text.removeprefix(_SCHEME)
    name, at, alias = body.partition("@")
    if at:
        return ModelRef(_checked(_NAME, name, "name", text), alias=_alias(alias, text))
    name, slash, version = body.partition("/")
    return ModelRef(
        _checked(_NAME, name, "name", text),
        version=_checked(_VERSION, version, "version", text) if slash else None,
    )


def parse_new_name(text: str) -> str:
    """Return `text` if a model can be registered under it; INVALID_INPUT."""
    if not _NAME.fullmatch(text) or text.endswith(OPTIMIZED_SUFFIX):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--name {printable(text)}: expected the name of a model (letters, digits, spaces and "
            "._-), without version and alias",
            f"MLflow numbers versions; names that end with {OPTIMIZED_SUFFIX} belong to `mlctl "
            "optimize`.",
        )
    return text


def optimized_name(name: str) -> str:
    """Return the registered name of the optimized variants of `name`."""
    return name if name.endswith(OPTIMIZED_SUFFIX) else name + OPTIMIZED_SUFFIX


def bundle_name(name: str) -> str:
    """Return `name` as manifests, Bentos and URLs need it: lower case, no spaces."""
    lowered = re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:_BUNDLE_NAME_LENGTH].strip("._-")
    if not lowered:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"model name {printable(name)!r} has no letters")
    return lowered


def _alias(alias: str, text: str) -> str:
    return _checked(_ALIAS, alias, "alias", text)


def _checked(pattern: re.Pattern[str], value: str, part: str, text: str) -> str:
    if pattern.fullmatch(value):
        return value
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"model reference {printable(text)!r}: {printable(value)!r} is not a {part}",
        "Write models:/NAME/3, models:/NAME@alias, NAME/3, NAME@alias or NAME.",
    )
