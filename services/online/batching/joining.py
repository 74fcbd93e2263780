"""Run several requests as one batch; each gets its own answer or its own error.

Pure: the model is a function. A batch that fails, or that cannot be joined, is halved until the
failing request is alone. A bad request costs the others of its batch time, but not their
answers. That takes at most twice as many runs as there are requests. A half whose callers have
all left is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

from services.online.batching.admission import deadline_exceeded
from services.online.batching.rawrows import RawRows, arrays_of, join_raw
from services.runtime.padding import Arrays, LengthPadding
from services.runtime.scorer import join_rows

__all__ = ["Arrays", "Inputs", "Outcome", "Share", "cut", "run_joined"]
Inputs = Arrays | RawRows
# The outputs of a run, and which of their rows are a request's: up to None, all of them. Plain,
# as one is made for every request.
Share = tuple[Arrays, int, int | None]
Outcome = Share | Exception
_T = TypeVar("_T")


def run_joined(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[Inputs],
    rows: Sequence[int],
    lengths: LengthPadding | None = None,
    gone: Sequence[Callable[[], bool]] | None = None,
) -> list[Outcome]:
    """Return one outcome for each of `requests`, in order; `rows` are their numbers of rows.

    With `lengths`, sequences of different lengths are padded for the run. `gone` says of each
    request whether its caller left or its deadline passed.
    """
    if len(requests) == 1:
        outputs = _attempt(partial(run, arrays_of(requests[0])))
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
    requests: Sequence[Inputs],
    rows: Sequence[int],
    lengths: LengthPadding | None,
) -> list[Share]:
    if lengths is None:
        return _divide(run(_join(requests)), rows)
    plain = [arrays_of(inputs) for inputs in requests]
    levelled = lengths.pad_to_longest(plain)
    shares = _divide(run(join_rows(levelled)), rows)
    padded = lengths.length(levelled[0])
    if padded is None:
        return shares
    own = [lengths.length(inputs) for inputs in plain]
    return [
        share if length is None else (lengths.trim(cut(share), padded, length), 0, None)
        for share, length in zip(shares, own, strict=True)
    ]


def _join(requests: Sequence[Inputs]) -> Arrays:
    raw = [inputs for inputs in requests if not isinstance(inputs, dict)]
    if len(raw) == len(requests):
        return join_raw(raw)
    plain = [inputs for inputs in requests if isinstance(inputs, dict)]
    return join_rows([arrays_of(inputs) for inputs in requests] if raw else plain)


def _attempt(work: Callable[[], _T]) -> _T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - it is the outcome of the request
        return error


def _divide(outputs: Arrays, rows: Sequence[int]) -> list[Share]:
    for array in outputs.values():
        array[:0]  # what cannot be divided fails here, and not when it is cut
    ends = accumulate(rows)  # plain numbers: numpy's own are slow to add and to slice with
    return [(outputs, end - count, end) for count, end in zip(rows, ends, strict=True)]
