"""One way to write a value as JSON, so that its hash is the same everywhere."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys, no spaces, UTF-8; ValueError for NaN and infinities."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()
