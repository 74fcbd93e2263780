"""What a run must show: an honest client is served, and the server's memory stays.

Pure: figures in, reasons to fail out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# The honest client's p99 beside hostile connections, over that beside as many honest ones.
MAX_RATIO = 3.0
MAX_GROWTH_MIB = 64.0


@dataclass(frozen=True, slots=True)
class Round:
    """The p99 in milliseconds of two phases that followed each other."""

    busy_ms: float
    hostile_ms: float

    @property
    def ratio(self) -> float:
        """How many times slower the client was beside hostile connections."""
        return self.hostile_ms / self.busy_ms


def p99_ms(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3


def judge(rounds: Sequence[Round], mebibytes: Sequence[float]) -> list[str]:
    """Return why a scenario fails; empty if it passes.

    The phases of a round have the same neighbours on the machine, so the median of the rounds'
    ratios is compared. `mebibytes` is the server's resident set before the first hostile phase,
    and then its samples within them.
    """
    found = []
    ratio = median(each.ratio for each in rounds)
    if ratio > MAX_RATIO:
        found.append(f"p99 is {ratio:.1f} times that beside honest clients (limit {MAX_RATIO:g})")
    before, *during = mebibytes
    growth = max(during) - before
    if growth > MAX_GROWTH_MIB:
        found.append(f"the server grew by {growth:.0f} MiB (limit {MAX_GROWTH_MIB:g} MiB)")
    return found
