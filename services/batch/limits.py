"""How many bad rows a job may have: a number, or a share of its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bundle.errors import ErrorCode, MlctlError

_FORM = re.compile(r"(\d+)|(\d+(?:\.\d+)?)%")
# A share is not judged on fewer rows: the very first one may be bad.
_LEAST = 1000


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """At most `count` bad rows, or else `share` (0 to 1) of all rows."""

    count: int | None = None
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """`N` or `P%`; INVALID_INPUT for anything else."""
        match = _FORM.fullmatch(text.strip())
        if match is None or (match[2] and float(match[2]) > 100):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--max-errors {text}: write a number of rows such as 100, or a share such as 1%",
            )
        return cls(count=int(match[1])) if match[1] else cls(share=float(match[2]) / 100)

    def most(self, total: int | None, seen: int) -> int:
        """How many rows may be bad of `total`, or, while that is not known, of `seen`."""
        if self.count is not None:
            return self.count
        return int(self.share * (max(seen, _LEAST) if total is None else total))

    def check(self, bad: int, total: int | None, seen: int, reason: str | None = None) -> None:
        """TOO_MANY_BAD_ROWS if `bad` of `seen` rows are too many."""
        if bad <= self.most(total, seen):
            return
        limit = f"{self.count}" if self.count is not None else f"{self.share * 100:g}%"
        told = f"; the last one: {reason}" if reason else ""
        raise MlctlError(
            ErrorCode.TOO_MANY_BAD_ROWS,
            f"{bad} of {seen} rows are bad, more than --max-errors {limit} allows{told}",
        )
