"""Find the rows at fault: a batch that fails is halved until the bad row is alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.core.errors import MlctlError
from mlctl.services.model.run_errors import is_caused_by_inputs


@dataclass(frozen=True, slots=True)
class Scored:
    """The outputs of the rows with the indices `rows`, and by index the reasons of failed rows."""

    outputs: dict[str, np.ndarray] | None
    rows: np.ndarray
    reasons: dict[int, str]


class TooManyError(Exception):
    """More rows failed than the caller allows."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return f"{len(self.reasons)} rows failed"


def score_rows(
    run: Callable[[Arrays], dict[str, np.ndarray]], inputs: Arrays, max_bad: int | None = None
) -> Scored:
    """Run all rows of `inputs`; a row that makes `run` fail has no answer, all others have one.

    One bad row costs about 2·log2(rows) more calls. TooManyError once more than `max_bad`
    rows have failed.
    """
    total = next(iter(inputs.values())).shape[0]
    parts: list[dict[str, np.ndarray]] = []
    good: list[np.ndarray] = []
    reasons: dict[int, str] = {}
    pending = [(0, total)]
    while pending:
        first, last = pending.pop()
        try:
            parts.append(run({name: array[first:last] for name, array in inputs.items()}))
            good.append(np.arange(first, last))
        except MlctlError as error:
            if not is_caused_by_inputs(error):  # a failure of the machine or of mlctl ends the job
                raise
            if last - first > 1:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
                continue
            reasons[first] = _describe(error)
            if max_bad is not None and len(reasons) > max_bad:
                raise TooManyError(reasons) from error
    if not parts:
        return Scored(None, np.zeros(0, np.int64), reasons)
    if len(parts) == 1:
        return Scored(parts[0], good[0], reasons)
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Scored(outputs, np.concatenate(good), reasons)


def _describe(error: MlctlError) -> str:
    """Return the error's message with the runtime's text, which only the operator can see."""
    cause = error.__cause__
    text = str(cause).strip().splitlines()[0][:300] if cause and str(cause).strip() else ""
    return f"{error.message}: {text}" if text and text not in error.message else error.message
