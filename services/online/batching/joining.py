"""Run several requests as one batch; each gets its own answer or its own error.

Pure: the model is a function. A batch that fails, or that cannot be joined, is halved until the
failing request is alone. A bad request costs the others of its batch time, but not their
answers. That takes at most twice as many runs as there are requests. A half is skipped if all of
its clients have disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

from services.online.batching.admission import deadline_exceeded
from services.runtime.padding import Arrays, LengthPadding
from services.runtime.scorer import join_rows

__all__ = ["Arrays", "Outcome", "Share", "cut", "run_joined"]
# The outputs of a run, and the first and the last row (exclusive) of one request; None is all rows.
# A plain tuple, because one is made for every request.
Share = tuple[Arrays, int, int | None]
Outcome = Share | Exception
_T = TypeVar("_T")


def run_joined(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[Arrays],
    rows: Sequence[int],
    lengths: LengthPadding | None = None,
    gone: Sequence[Callable[[], bool]] | None = None,
) -> list[Outcome]:
    """Return one outcome for each of `requests`, in order; `rows` are their numbers of rows.

    With `lengths`, sequences of different lengths are padded for the run. `gone` returns for each
    request whether its client disconnected or its deadline passed.
    """
    if len(requests) == 1:
        outputs = _attempt(partial(run, requests[0]))
        return [outputs if isinstance(outputs, Exception) else (outputs, 0, None)]
    shares = _attempt(partial(_run_together, run, requests, rows, lengths))
    if not isinstance(shares, Exception):
        return list(shares)
    middle = len(requests) // 2
    outcomes: list[Outcome] = []
    for half in (slice(middle), slice(middle, None)):
        left = None if gone is None else gone[half]
        if left is not None and all(is_gone() for is_gone in left):
            outcomes += [deadline_exceeded() for _ in left]
        else:
            outcomes += run_joined(run, requests[half], rows[half], lengths, left)
    return outcomes


def cut(share: Share) -> Arrays:
    """Return the request's own rows of the outputs."""
    outputs, start, end = share
    if end is None:
        return outputs
    return {name: array[start:end] for name, array in outputs.items()}


def _run_together(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[Arrays],
    rows: Sequence[int],
    lengths: LengthPadding | None,
) -> list[Share]:
    if lengths is None:
        return _divide(run(join_rows(requests)), rows)
    levelled = lengths.pad_to_longest(requests)
    shares = _divide(run(join_rows(levelled)), rows)
    padded = lengths.length(levelled[0])
    if padded is None:
        return shares
    own = [lengths.length(inputs) for inputs in requests]
    return [
        share if length is None else (lengths.trim(cut(share), padded, length), 0, None)
        for share, length in zip(shares, own, strict=True)
    ]


def _attempt(work: Callable[[], _T]) -> _T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - it is the outcome of the request
        return error


def _divide(outputs: Arrays, rows: Sequence[int]) -> list[Share]:
    for array in outputs.values():
        array[:0]  # an output without rows fails here, and not when it is cut
    ends = accumulate(rows)  # plain numbers: numpy's own are slow to add and to slice with
    return [(outputs, end - count, end) for count, end in zip(rows, ends, strict=True)]
