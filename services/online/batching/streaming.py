"""A streamed answer, as its reader sees it. Use it on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Self, TypeVar

from mlctl.bundle.arrays import Arrays

# Pieces that are computed ahead of the reader.
ROOM = 2


class Answer(NamedTuple):
    """A request's outputs, its queue and inference time in seconds, and the rows of its batch.

    `rows` are its own, 1 without a batch dimension.
    `parameters` are extra response parameters, such as the source of a precomputed answer.
    `lookup_seconds`, a part of the inference time, is that of features that were looked up.
    """

    outputs: Arrays
    queue_seconds: float
    infer_seconds: float
    batch_rows: int
    parameters: Mapping[str, str | float] | None = None
    lookup_seconds: float = 0.0
    rows: int = 1


Piece = TypeVar("Piece")


class PieceStream(Generic[Piece]):
    """The pieces of an answer in order; iterate over it, and close it when you stop reading."""

    def __init__(self, taken: Callable[[], None], closed: Callable[[], None]) -> None:
        """`taken` is called after each piece that is read, `closed` when the reader stops early."""
        self._taken = taken
        self._closed = closed
        self._pieces: deque[Piece] = deque()
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None
        self.ended = False

    @property
    def full(self) -> bool:
        """Whether the reader is behind, so that no further piece should be computed."""
        return len(self._pieces) >= ROOM

    def put(self, piece: Piece) -> None:
        """Add the next piece."""
        self._pieces.append(piece)
        self._arrived.set()

    def end(self, failure: Exception | None = None) -> None:
        """End the stream: the answer is complete, or `failure` is raised after the last piece."""
        if not self.ended:
            self.ended = True
            self._failure = failure
            self._arrived.set()

    def close(self) -> None:
        """Stop reading; the remaining pieces are never computed."""
        self._pieces.clear()
        if not self.ended:
            self.end()
            self._closed()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece; pieces that came before a failure are returned before it."""
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


class AnswerStream(PieceStream[Answer]):
    """The pieces of an answer as tensors."""
