"""Latency histograms as the journal keeps them: only the edges that something fell under. Pure.

A quantile is given as the first edge that enough stayed within, so it reads "at most".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from mlctl.rollout.domain.traffic.counts import Totals

# Pairs of an edge in milliseconds and how many fell under it but not under the one before;
# None stands for what is beyond every edge.
Sparse = Sequence[tuple[float | None, int]]
MAX_EDGES = 48  # finite edges of one slot in one tick


def sparse(totals: Totals, edges: Sequence[float]) -> list[tuple[float | None, int]]:
    """The latencies of `totals`, counted at `edges`, without what is empty.

    Of many edges neighbours are put together, under the later one: a tick stays small in the
    record whatever the traffic, and its quantiles still hold as "at most".
    """
    counts = (later - earlier for earlier, later in pairwise((0, *totals.within, totals.timed)))
    found = [(edge, n) for edge, n in zip((*edges, None), counts, strict=False) if n]
    beyond = found[-1:] if found and found[-1][0] is None else []
    kept = found[: len(found) - len(beyond)]
    while len(kept) > MAX_EDGES:
        kept = _halved(kept)
    return [*kept, *beyond]


def _halved(pairs: Sequence[tuple[float | None, int]]) -> list[tuple[float | None, int]]:
    """Return every second edge, and always the last."""
    last = len(pairs) - 1
    indices = reversed(range(last, -1, -2))
    return [(pairs[at][0], sum(n for _, n in pairs[max(at - 1, 0) : at + 1])) for at in indices]


def joined(parts: Iterable[Sparse]) -> Counter[float]:
    """Several histograms as one, by edge; infinity is beyond all."""
    counts: Counter[float] = Counter()
    for part in parts:
        for edge, n in part:
            counts[math.inf if edge is None else edge] += n
    return counts


def quantile_edge(counts: Mapping[float, int], share: float) -> float | None:
    """The first edge in milliseconds that at least `share` of the requests stayed within.

    None with too few requests, or if it lies beyond the last edge.
    """
    timed = sum(counts.values())
    if timed * (1.0 - share) < 1.0 - 1e-9:
        return None
    within = 0
    for edge in sorted(counts):
        within += counts[edge]
        if within >= share * timed:
            return edge if math.isfinite(edge) else None
    return None
