"""Text that comes from users: what is safe to print, and which name they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, existing: Iterable[str]) -> tuple[str, ...]:
    """Return up to three of `existing` similar to `name`, the nearest first, safe to print."""
    return tuple(printable(near) for near in difflib.get_close_matches(name, list(existing)))


def suggestion(name: str, existing: Iterable[str], label: str) -> str:
    """Return a sentence for an error: similar names, else `label` and all names, else none."""
    names = sorted(existing)
    if near := near_names(name, names):
        return f"did you mean {' or '.join(repr(each) for each in near)}?"
    if names:
        shown = ", ".join(printable(each) for each in names[:8])
        return f"{label}: {shown}" + (", ..." if len(names) > 8 else "")
    return f"{label}: none"


def printable(text: str) -> str:
    """Replace control and formatting characters in untrusted `text`."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
