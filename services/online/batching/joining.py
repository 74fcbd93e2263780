"""Run several requests as one batch; each gets its own answer or its own error.

Pure: the model is a function. A batch that fails, or that cannot be joined, is halved until the
failing request is alone. A bad request costs the others of its batch time, but not their
answers. That takes at most twice as many runs as there are requests. A half is skipped if all of
its clients have disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from services.online.batching.admission import deadline_exceeded
from services.runtime.padding import Arrays, LengthPadding
from services.runtime.scorer import join_rows

__all__ = ["Arrays", "JoinedRequest", "Outcome", "run_joined"]
Outcome = Arrays | Exception


class JoinedRequest(Protocol):
    """A request of a batch; `open` until its client disconnected or its deadline passed."""

    rows: int
    inputs: Arrays
    open: bool


def run_joined(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[JoinedRequest],
    lengths: LengthPadding | None = None,
) -> list[Outcome]:
    """Return one outcome for each of `requests`, in order.

    With `lengths`, sequences of different lengths are padded for the run.
    """
    try:
        if len(requests) == 1:
            return [run(requests[0].inputs)]
        return list(_run_together(run, requests, lengths))
    except Exception as error:  # noqa: BLE001 - it is the outcome of the request
        if len(requests) == 1:
            return [error]
    middle = len(requests) // 2
    outcomes: list[Outcome] = []
    for half in (requests[:middle], requests[middle:]):
        if any([request.open for request in half]):  # noqa: C419 - faster
            outcomes += run_joined(run, half, lengths)
        else:
            outcomes += [deadline_exceeded() for _ in half]
    return outcomes


def _run_together(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[JoinedRequest],
    lengths: LengthPadding | None,
) -> list[Arrays]:
    rows = [request.rows for request in requests]
    inputs = [request.inputs for request in requests]
    if lengths is None:
        return _divide(run(join_rows(inputs)), rows)
    levelled = lengths.pad_to_longest(inputs)
    shares = _divide(run(join_rows(levelled)), rows)
    padded = lengths.length(levelled[0])
    if padded is None:
        return shares
    own = [lengths.length(each) for each in inputs]
    return [
        share if length is None else lengths.trim(share, padded, length)
        for share, length in zip(shares, own, strict=True)
    ]


def _divide(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Return the rows of each request, as views."""
    if len(outputs) == 1 and len(rows) == sum(rows):
        # An array yields its rows in C, several times as fast as slices are made.
        ((name, array),) = outputs.items()
        return [{name: row} for row in array[:, None]]
    ends = list(accumulate(rows))  # plain numbers: numpy's own are slow to add and to slice with
    spans = [slice(end - count, end) for count, end in zip(rows, ends, strict=True)]
    return [{name: array[span] for name, array in outputs.items()} for span in spans]
