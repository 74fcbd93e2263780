"""One answer that comes in pieces, seen by who reads it. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from services.runtime.padding import Arrays

# So many pieces are made ahead of their reader; no more are computed until one is taken.
ROOM = 2


class Answer(NamedTuple):
    """A request's outputs, how long it waited, and the batch that it ran in.

    `parameters` are what the response says of where the answer is from, if that is a question.
    """

    outputs: Arrays
    queue_seconds: float
    infer_seconds: float
    batch_rows: int
    parameters: Mapping[str, str | float] | None = None


class AnswerStream:
    """The pieces of an answer, in turn; iterate over it, and close it whenever it is left."""

    def __init__(self, taken: Callable[[], None], closed: Callable[[], None]) -> None:
        """`taken` is called after each piece that was taken, `closed` when the reader leaves."""
        self._taken = taken
        self._closed = closed
        self._pieces: deque[Answer] = deque()
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None
        self.ended = False

    @property
    def full(self) -> bool:
        """Whether the reader is behind, so that nothing more should be made for it."""
        return len(self._pieces) >= ROOM

    def put(self, piece: Answer) -> None:
        """Add the next piece."""
        self._pieces.append(piece)
        self._arrived.set()

    def end(self, failure: Exception | None = None) -> None:
        """Nothing more comes: the answer is whole, or `failure` is what became of the rest."""
        if not self.ended:
            self.ended = True
            self._failure = failure
            self._arrived.set()

    def close(self) -> None:
        """Leave: what was not computed yet never is."""
        self._pieces.clear()
        if not self.ended:
            self.end()
            self._closed()

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> Answer:
        """The next piece; what was made before a failure comes before it."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        piece = self._pieces.popleft()
        if not self.ended:
            self._taken()
        return piece
