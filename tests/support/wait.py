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
    """Poll `predicate` until it is true; AssertionError with `what` after `timeout` seconds.

    It polls less often the longer it waits: what it waits for needs the CPU time.
    """
    start = time.monotonic()
    while not predicate():
        waited = time.monotonic() - start
        if waited > timeout:
            raise AssertionError(f"not within {timeout:g} s: {what or predicate}")
        time.sleep(min(max(0.01, waited / 20), 0.1))
