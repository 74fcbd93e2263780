"""The limit of bad rows in a job: a number, or a share of its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bundle.errors import ErrorCode, MlctlError

_FORM = re.compile(r"(\d+)|(\d+(?:\.\d+)?)%")
# A share is judged on at least this many rows: the very first row may be bad.
_MIN_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """At most `count` bad rows, or if that is None, `share` (0 to 1) of all rows."""

    count: int | None = None
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Parse `N` or `P%`; INVALID_INPUT for anything else."""
        match = _FORM.fullmatch(text.strip())
        if match is None or (match[2] and float(match[2]) > 100):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--max-errors {text}: write a number of rows such as 100, or a share such as 1%",
            )
        return cls(count=int(match[1])) if match[1] else cls(share=float(match[2]) / 100)

    def max_bad(self, total: int | None, seen: int) -> int:
        """Return how many of `total` rows may be bad; of the `seen` rows while total is unknown."""
        if self.count is not None:
            return self.count
        return int(self.share * (max(seen, _MIN_ROWS) if total is None else total))

    def check(self, bad: int, total: int | None, seen: int, reason: str = "") -> None:
        """Raise TOO_MANY_BAD_ROWS if `bad` of `seen` rows exceed the limit."""
        if bad <= self.max_bad(total, seen):
            return
        limit = f"{self.count}" if self.count is not None else f"{self.share * 100:g}%"
        last = f"; the last one: {reason}" if reason else ""
        raise MlctlError(
            ErrorCode.TOO_MANY_BAD_ROWS,
            f"{bad} of {seen} rows are bad, more than --max-errors {limit} allows{last}",
        )
