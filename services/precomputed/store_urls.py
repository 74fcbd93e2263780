"""Where precomputed answers are stored: a folder of SQLite files, or a Redis server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from bundle.errors import ErrorCode, MlctlError
from bundle.home import state_dir
from bundle.packages import install_hint
from services.precomputed.base import PrecomputedStore, check_name
from services.precomputed.sqlite import SqliteStore

_REDIS_SCHEMES = ("redis", "rediss")


def check_location(place: str) -> str:
    """Return `place` if it is a folder or a Redis URL; ValueError otherwise."""
    scheme, separator, _rest = place.partition("://")
    if separator and scheme not in _REDIS_SCHEMES:
        known = ", ".join(f"{each}://" for each in _REDIS_SCHEMES)
        raise ValueError(
            f"{scheme[:20]}:// is no store of precomputed answers: {known} or a folder"
        )
    if separator:
        _host_of(place)
    return place


def redact_location(place: str) -> str:
    """`place` for messages: without the user, the password and the options of a URL."""
    if "://" not in place:
        return place
    return f"{place.partition('://')[0]}://{_host_of(place)}{urlsplit(place).path}"


def _host_of(url: str) -> str:
    """Host and port of `url`; the ValueError for a malformed URL quotes nothing of it."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise ValueError(
            "the URL is malformed: percent-encode special characters of its password"
        ) from None
    return f"{parts.hostname or ''}{port}"


def open_store(name: str, place: str | None = None) -> PrecomputedStore:
    """Return the store of the answers called `name` at `place`; creates and reaches nothing yet.

    RUNTIME_MISSING names the extra that the store needs.
    """
    check_name(name)
    if place is None or "://" not in place:
        return SqliteStore(_folder(place) / f"{name}.db")
    store: PrecomputedStore = _redis_module().RedisStore(name, place)
    return store


def list_names(place: str | None = None) -> list[str]:
    """Return the names of all answers at `place`, sorted."""
    if place is None or "://" not in place:
        return sorted(path.stem for path in _folder(place).glob("*.db"))
    found: list[str] = _redis_module().list_names(place)
    return found


def lock_path(name: str, place: str | None = None) -> Path:
    """Return the file that this machine's jobs lock that write the answers called `name`."""
    place = str(_folder(place).absolute()) if place is None or "://" not in place else place
    digest = hashlib.sha256(place.encode()).hexdigest()
    return _folder(None) / f"{name}-{digest[:12]}.lock"


def _folder(place: str | None) -> Path:
    return Path(place) if place is not None else state_dir("precomputed")


def _redis_module() -> ModuleType:
    """Import the Redis store, whose library is optional."""
    try:
        from services.precomputed import redis_store
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"precomputed answers in Redis need the package {error.name}",
            install_hint("redis"),
        ) from error
    return redis_store
