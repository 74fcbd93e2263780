"""A request of more rows than a batch: queued as several parts, answered as one.

The parts have about equal sizes, so that each leaves room for small requests in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.services.model.scorer import join_rows
from mlctl.services.online.batching.streaming import Answer


class Waiter(Protocol):
    """A request that waits for its answer. Neither method may raise; a second call does nothing."""

    def set_result(self, answer: Answer, /) -> None:
        """Complete it with its answer."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Complete it with an error."""
        ...


class Cancellable(Protocol):
    """A request in progress: a queued one, or a task."""

    def cancel(self) -> object:
        """Withdraw the request; its waiter is not completed."""
        ...


class SplitRequest:
    """Completes `waiter` with the joined answer of all parts, or with the first error of one.

    `parts` are the queued parts that `cancel` withdraws, in the order of their rows.
    """

    def __init__(self, waiter: Waiter, count: int) -> None:
        self.waiter = waiter
        self.parts: list[Cancellable] = []
        self._answers: list[Answer | None] = [None] * count
        self._open = count

    def part(self, index: int) -> Waiter:
        """Return the waiter of the part at `index`."""
        return _PartWaiter(self, index)

    def cancel(self) -> None:
        """Withdraw all parts."""
        parts, self.parts = self.parts, []
        for part in parts:
            part.cancel()

    def answered(self, index: int, answer: Answer) -> None:
        """Take the answer of one part; after the last one, complete the waiter."""
        self._answers[index] = answer
        self._open -= 1
        if self._open == 0:
            self.parts = []
            self.waiter.set_result(_joined([each for each in self._answers if each is not None]))

    def failed(self, error: BaseException) -> None:
        """Withdraw the other parts and complete the waiter with `error`."""
        self.cancel()
        self.waiter.set_exception(error)


class _PartWaiter:
    """Waits for the answer of one part."""

    __slots__ = ("_index", "_request")

    def __init__(self, request: SplitRequest, index: int) -> None:
        self._request = request
        self._index = index

    def set_result(self, answer: Answer, /) -> None:
        self._request.answered(self._index, answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._request.failed(error)


def split_evenly(
    inputs: Mapping[str, np.ndarray], rows: int, max_rows: int
) -> Iterator[tuple[int, Arrays]]:
    """Yield the numbers of rows and the inputs of parts of at most `max_rows` rows."""
    count = -(-rows // max_rows)
    start = 0
    for index in range(count):
        end = rows * (index + 1) // count
        yield end - start, {name: array[start:end] for name, array in inputs.items()}
        start = end


def _joined(answers: list[Answer]) -> Answer:
    """Return the answer of the whole request: its queue time is that of the first batch."""
    queued = min(answer.queue_seconds for answer in answers)
    ended = max(answer.queue_seconds + answer.infer_seconds for answer in answers)
    outputs = join_rows([answer.outputs for answer in answers])
    rows = max(each.batch_rows for each in answers)
    looked_up = sum(each.lookup_seconds for each in answers)
    own = sum(each.rows for each in answers)
    return Answer(outputs, queued, ended - queued, rows, None, looked_up, own)


def enqueue_parts(
    request: SplitRequest,
    parts: Iterable[tuple[int, Arrays]],
    enqueue: Callable[[int, Arrays, Waiter], Cancellable],
) -> SplitRequest:
    """Queue every part; if one is rejected, withdraw the others and raise its error."""
    try:
        for index, (rows, inputs) in enumerate(parts):
            request.parts.append(enqueue(rows, inputs, request.part(index)))
    except BaseException:
        request.cancel()
        raise
    return request
