"""Scores that `mlctl optimize` proved of two revisions, compared where that means something. Pure.

Two scores are comparable if they are of the same metric on the same data. The rows are the same,
but only the scores are recorded, so the noise of their difference is taken as that of two samples:
an upper bound, which lets small losses pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STANDARD_ERRORS = 2.0
# For scores that are no shares: how much of the live score's size may be lost.
_RELATIVE = 0.1


@dataclass(frozen=True, slots=True)
class ProvedScore:
    """The score of one model: `value` by `metric` on `rows` labelled rows.

    `data` is the sha256 of the file of rows, `code` that of a metric of the user's own.
    """

    model: str
    metric: str
    value: float
    higher_is_better: bool
    rows: int
    data: str
    code: str | None = None

    def comparable(self, other: ProvedScore) -> bool:
        """Whether both are of the same model name, metric and data."""
        mine, theirs = ((s.model, s.metric, s.data, s.code) for s in (self, other))
        return mine == theirs

    def clearly_worse(self, than: ProvedScore) -> bool:
        """Whether this one is worse by more than the noise of two such samples."""
        loss = than.value - self.value if self.higher_is_better else self.value - than.value
        return loss > self._noise(than)

    def _noise(self, other: ProvedScore) -> float:
        if not (0 <= self.value <= 1 and 0 <= other.value <= 1 and self.higher_is_better):
            return _RELATIVE * abs(other.value)
        # No mean of values in 0 to 1 varies more than that of truth values.
        variance = sum(each.value * (1 - each.value) / each.rows for each in (self, other))
        return _STANDARD_ERRORS * math.sqrt(variance)


def clearly_worse(live: Iterable[ProvedScore], candidate: Iterable[ProvedScore]) -> tuple[str, ...]:
    """Return a sentence for each model of which the candidate's score is clearly worse."""
    pairs = [(old, new) for old in live for new in candidate if new.comparable(old)]
    return tuple(
        f"{new.metric} of {new.model!r} is {new.value:.4g} on {new.rows:,} rows, where the live "
        f"one has {old.value:.4g} on the same data"
        for old, new in pairs
        if new.clearly_worse(old)
    )
