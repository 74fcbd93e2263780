"""What a place of precomputed answers means, and the store that is there."""

from __future__ import annotations

from pathlib import Path

from bundle.home import state_dir
from services.hybrid.base import Store, check_name
from services.hybrid.sqlite import SqliteStore


def check_place(place: str) -> str:
    """`place` if it has a form that is known; ValueError if not."""
    scheme, separator, _rest = place.partition("://")
    if separator and scheme not in _SCHEMES:
        raise ValueError(f"{scheme}:// is no store of precomputed answers")
    return place


def open_store(name: str, place: str | None = None) -> Store:
    """The store of the answers called `name` at `place`; nothing is made or reached yet."""
    check_name(name)
    return SqliteStore(Path(place or state_dir("hybrid")) / f"{name}.db")


_SCHEMES: frozenset[str] = frozenset()
