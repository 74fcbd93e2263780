"""Waiting for a condition with a deadline, the only kind of waiting in the tests.

The deadline is for what never comes; a slow or busy machine must not meet it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0


def wait_until(
    predicate: Callable[[], object], timeout: float = PATIENCE_SECONDS, what: str = ""
) -> None:
    """Poll `predicate` until it is true; AssertionError with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or predicate}")
        time.sleep(0.02)
