"""Callers without futures: many requests of one turn are queued and answered together.

A future costs two turns of the event loop's wheel for each request. Where the requests are
small and alike that is a good part of their cost, so a desk speaks for its callers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from services.online.batching.joining import Share
from services.online.batching.rawrows import RawRows
from services.protocol.priority import Priority


class Caller(RawRows, Protocol):
    """A request whose shape was checked before: it has `rows` rows, joined by `key`.

    It is to be answered in `timeout` seconds; `number` is what the queue knows it by.
    """

    rows: int
    key: Hashable
    timeout: float
    priority: Priority
    number: int

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_exception(self, error: Exception, /) -> None:
        """Tell it that there is no answer."""
        ...


# A caller of the desk's own, its share of the outputs, and the seconds that it waited. Plain,
# as one is made for every request.
Told = tuple[Any, Share, float]


class Desk(Protocol):
    """Who answers callers, a batch at a time."""

    def answer(self, told: list[Told], seconds: float) -> None:
        """Answer callers of one batch, which ran for `seconds`; each still waits. Never raises."""
        ...
