"""A bounded queue from the request path to the observer's thread that never blocks."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Backlog(Generic[_T]):
    """Items of known sizes from one thread to another; when it is full they are dropped.

    `put` belongs to the one thread, `take` and `free` to the other; each number is written
    by one of them only, so that nothing is locked.
    """

    def __init__(self, max_items: int, max_bytes: int = 0) -> None:
        self._items: deque[_T] = deque()
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._given_bytes = 0
        self._freed_bytes = 0
        self.dropped = 0

    def put(self, item: _T, size: int = 0) -> None:
        """Add `item`, which holds `size` bytes until they are freed; or drop and count it."""
        held = self._given_bytes - self._freed_bytes
        if len(self._items) >= self._max_items or held + size > self._max_bytes:
            self.dropped += 1
            return
        self._given_bytes += size
        self._items.append(item)

    def take(self) -> list[_T]:
        """Remove and return all items, oldest first."""
        items = self._items
        return [items.popleft() for _ in range(len(items))]

    def free(self, size: int) -> None:
        """Release `size` bytes of taken items."""
        self._freed_bytes += size
