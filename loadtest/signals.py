"""Steps that an interrupt must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """SIGINT and SIGTERM that come within it take effect at its end.

    Only the main thread is ever interrupted, so in others there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {each: signal.signal(each, note) for each in _HELD}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
