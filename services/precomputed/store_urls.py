"""Locations of precomputed predictions: a folder of SQLite files, or the URL of a Redis server."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import state_dir
from mlctl.core.packages import install_hint
from mlctl.services.precomputed.base import PrecomputedStore, check_name
from mlctl.services.precomputed.sqlite import SqliteStore

_REDIS_SCHEMES = ("redis", "rediss")


def check_location(location: str) -> str:
    """Return `location` if it is a folder or a Redis URL; ValueError otherwise."""
    scheme, separator, _rest = location.partition("://")
    if separator and scheme not in _REDIS_SCHEMES:
        known = ", ".join(f"{each}://" for each in _REDIS_SCHEMES)
        raise ValueError(
            f"{scheme[:20]}:// is not a store of precomputed predictions: use {known} or a folder"
        )
    if separator:
        _host_of(location)
    return location


def redact_location(location: str) -> str:
    """Return `location` for messages: a URL without user, password and options."""
    if "://" not in location:
        return location
    return f"{location.partition('://')[0]}://{_host_of(location)}{urlsplit(location).path}"


def _host_of(url: str) -> str:
    """Return host and port of `url`; ValueError for a malformed URL, without quoting it."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise ValueError(
            "the URL is malformed: percent-encode special characters of its password"
        ) from None
    return f"{parts.hostname or ''}{port}"


def open_store(name: str, location: str | None = None) -> PrecomputedStore:
    """Return the store of the predictions `name` at `location`; does not connect or create files.

    RUNTIME_MISSING names the extra that the store needs.
    """
    check_name(name)
    if location is None or "://" not in location:
        return SqliteStore(_folder(location) / f"{name}.db")
    store: PrecomputedStore = _redis_module().RedisStore(name, location)
    return store


def list_names(location: str | None = None) -> list[str]:
    """Return the names of all predictions at `location`, sorted."""
    if location is None or "://" not in location:
        return sorted(path.stem for path in _folder(location).glob("*.db"))
    found: list[str] = _redis_module().list_names(location)
    return found


def _folder(location: str | None) -> Path:
    return Path(location) if location is not None else state_dir("precomputed")


def _redis_module() -> ModuleType:
    """Import the Redis store, whose library is optional."""
    try:
        from mlctl.services.precomputed import redis_store
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"precomputed predictions in Redis need the package {error.name}",
            install_hint("redis"),
        ) from error
    return redis_store
