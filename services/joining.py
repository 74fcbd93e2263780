"""Running several requests as one batch so that each gets its own answer, or its own error.

Pure: the model is a function. A batch that fails, or that cannot be joined, is halved
until the request that makes it fail stands alone, so a bad row costs its neighbours time
but not their answers. That may take twice as many runs as there are requests; a half for
which nobody waits any more is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

from services.admission import deadline_exceeded
from services.padding import Arrays, LengthPadding
from services.scorer import join_rows

__all__ = ["Arrays", "Outcome", "run_joined"]
Outcome = Arrays | Exception
_T = TypeVar("_T")


def run_joined(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[Arrays],
    rows: Sequence[int],
    lengths: LengthPadding | None = None,
    gone: Sequence[Callable[[], bool]] | None = None,
) -> list[Outcome]:
    """One outcome for each of `requests`, which have `rows` rows each, in their order.

    With `lengths` their sequences may be of unlike length, and are padded for the run.
    `gone` tells of each whether its caller left or was told that its time is over.
    """
    if len(requests) == 1:
        return [_attempt(partial(run, requests[0]))]
    answers = _attempt(lambda: _run_together(run, requests, rows, lengths))
    if not isinstance(answers, Exception):
        return list(answers)
    middle = len(requests) // 2
    outcomes: list[Outcome] = []
    for half in (slice(middle), slice(middle, None)):
        left = None if gone is None else gone[half]
        if left is not None and all(is_gone() for is_gone in left):
            outcomes += [deadline_exceeded() for _ in left]
        else:
            outcomes += run_joined(run, requests[half], rows[half], lengths, left)
    return outcomes


def _run_together(
    run: Callable[[Arrays], Arrays],
    requests: Sequence[Arrays],
    rows: Sequence[int],
    lengths: LengthPadding | None,
) -> list[Arrays]:
    if lengths is None:
        return _divide(run(join_rows(list(requests))), rows)
    levelled = lengths.level(requests)
    answers = _divide(run(join_rows(levelled)), rows)
    padded = lengths.length(levelled[0])
    if padded is None:
        return answers
    own = [lengths.length(inputs) for inputs in requests]
    return [
        answer if length is None else lengths.cut(answer, padded, length)
        for answer, length in zip(answers, own, strict=True)
    ]


def _attempt(work: Callable[[], _T]) -> _T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - handed to the caller whose request it is
        return error


def _divide(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    ends = accumulate(rows)  # plain numbers: numpy's own are slow to add and to slice with
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]
