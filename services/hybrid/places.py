"""What a place of precomputed answers means, and the store that is there."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.home import state_dir
from services.hybrid.base import Store, check_name
from services.hybrid.sqlite import SqliteStore

# Module and class of each scheme, and the extra that brings its library.
_SCHEMES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "redis": ("redis_store", "RedisStore", "redis"),
        "rediss": ("redis_store", "RedisStore", "redis"),
        "postgresql": ("postgres", "PostgresStore", "postgres"),
        "postgres": ("postgres", "PostgresStore", "postgres"),
    }
)


def check_place(place: str) -> str:
    """`place` if it has a form that is known; ValueError if not."""
    scheme, separator, _rest = place.partition("://")
    if separator and scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise ValueError(
            f"{scheme[:20]}:// is no store of precomputed answers: {known} or a folder"
        )
    return place


def open_store(name: str, place: str | None = None) -> Store:
    """The store of the answers called `name` at `place`; nothing is made or reached yet.

    RUNTIME_MISSING names the extra that a store needs.
    """
    check_name(name)
    if place is None or "://" not in place:
        return SqliteStore(_folder(place) / f"{name}.db")
    module, kind = _load(place)
    store: Store = getattr(module, kind)(name, place)
    return store


def list_names(place: str | None = None) -> list[str]:
    """The names of all answers at `place`, sorted."""
    if place is None or "://" not in place:
        return sorted(path.stem for path in _folder(place).glob("*.db"))
    found: list[str] = _load(place)[0].list_names(place)
    return found


def ledger_folder(name: str, place: str | None = None) -> Path:
    """Where jobs that write the answers called `name` at `place` keep what they have done."""
    if place is None or "://" not in place:
        return _folder(place) / f"{name}.jobs"
    digest = hashlib.sha256(place.encode()).hexdigest()
    return _folder(None) / f"{name}-{digest[:12]}.jobs"


def _folder(place: str | None) -> Path:
    return Path(place) if place is not None else state_dir("hybrid")


def _load(place: str) -> tuple[Any, str]:
    """The module of a URL's scheme, and the name of its store."""
    name, kind, extra = _SCHEMES[place.partition("://")[0]]
    try:
        return importlib.import_module(f"services.hybrid.{name}"), kind
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"precomputed answers in {extra} need the package {error.name}",
            f"pip install 'mlctl[{extra}]'",
        ) from error
