"""The entity keys of a request, from its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from mlctl.services.protocol.wire import invalid, shown

# HTTP: a key, or a list with one key per row.
ENTITY_KEY = "entity_key"
# gRPC: the list as JSON text, because its parameters cannot be lists.
ENTITY_KEYS = "entity_keys"
MAX_KEYS = 4096
MAX_KEY_CHARS = 512


def check_keys(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys, one per row, or none; INVALID_INPUT if they are malformed."""
    found = parameters.get(ENTITY_KEY)
    listed = parameters.get(ENTITY_KEYS)
    if listed is not None:
        if found is not None:
            raise invalid(f"parameters {ENTITY_KEY!r} and {ENTITY_KEYS!r} exclude each other")
        found = _listed(listed)
    if found is None:
        return ()
    keys = found if isinstance(found, list) else [found]
    if not 0 < len(keys) <= MAX_KEYS:
        raise invalid(f"the request has {len(keys)} entity keys, expected 1 to {MAX_KEYS}")
    return tuple(key_text(key) for key in keys)


def is_key(text: str) -> bool:
    """Whether every store accepts `text` as a key."""
    return 0 < len(text) <= MAX_KEY_CHARS and "\0" not in text


def _listed(text: object) -> list[object]:
    try:
        found = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, list):
        raise invalid(f"parameter {ENTITY_KEYS!r} must be a JSON array in a string")
    return found


def key_text(key: object) -> str:
    """Return a key as stored, integers as digits; INVALID_INPUT if it is not a valid key."""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str) or not is_key(key):
        raise invalid(
            f"entity key {shown(key)} is neither an integer nor a string of 1 to "
            f"{MAX_KEY_CHARS} characters"
        )
    return key
