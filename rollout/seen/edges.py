"""Latency histograms as the journal keeps them: only the edges that something fell under. Pure.

A quantile is told as the first edge that enough stayed within, so it reads "at most".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from rollout.counts import Totals

Sparse = Sequence[Sequence[int]]


def sparse(totals: Totals) -> list[list[int]]:
    """Pairs of an edge's index and how many fell under it but not under the one before.

    What is beyond every edge has the index after the last.
    """
    counts = [later - earlier for earlier, later in pairwise((0, *totals.within, totals.timed))]
    return [[index, count] for index, count in enumerate(counts) if count]


def joined(parts: Iterable[Sparse], edges: int) -> Totals:
    """Several sparse histograms over `edges` edges as one; only its latencies are set."""
    counts = [0] * (edges + 1)
    for part in parts:
        for index, count in part:
            counts[index] += count
    *within, timed = accumulate(counts)
    return Totals(timed=timed, within=tuple(within))


def quantile_edge(totals: Totals, share: float, edges: Sequence[float]) -> float | None:
    """The first edge in milliseconds that at least `share` of the requests stayed within.

    None with too few requests to tell, or if it lies beyond the last edge.
    """
    if totals.timed * (1.0 - share) < 1.0:
        return None
    wanted = share * totals.timed
    return next((edge for edge, n in zip(edges, totals.within, strict=True) if n >= wanted), None)
