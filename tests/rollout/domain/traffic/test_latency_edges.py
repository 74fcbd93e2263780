from __future__ import annotations

import math

import pytest

from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS, Totals
from mlctl.rollout.domain.traffic.latency_edges import MAX_EDGES, joined, quantile_edge, sparse

EDGES = (1.0, 2.0, 5.0)


def test_sparse__totals__keeps_counted_edges_only() -> None:
    totals = Totals(requests=12, timed=12, within=(0, 7, 9))
    assert sparse(totals, EDGES) == [(2.0, 7), (5.0, 2), (None, 3)]
    assert sparse(Totals(), EDGES) == []


@pytest.mark.parametrize("beyond", [0, 7])
def test_sparse__wide_histogram__keeps_few_edges_with_true_bounds(beyond: int) -> None:
    count = len(LATENCY_EDGES_MS)
    within = tuple(10 * (place + 1) for place in range(count))
    timed = 10 * count + beyond
    exact = dict.fromkeys(LATENCY_EDGES_MS, 10) | ({math.inf: beyond} if beyond else {})
    kept = sparse(Totals(requests=timed, timed=timed, within=within), LATENCY_EDGES_MS)
    assert len(kept) <= MAX_EDGES + 1
    assert sum(n for _, n in kept) == timed
    assert kept[-1] == (None, beyond) if beyond else kept[-1][0] == LATENCY_EDGES_MS[-1]
    for share in (0.5, 0.9, 0.99):
        told, real = (quantile_edge(each, share) for each in (joined([kept]), exact))
        assert told is not None
        assert real is not None
        assert real <= told <= 1.2 * real


def test_joined__histograms_from_json__are_summed() -> None:
    counts = joined([[[2.0, 7], [None, 1]], [(2.0, 1), (5.0, 2)]])  # type: ignore[list-item]
    assert counts == {2.0: 8, 5.0: 2, math.inf: 1}


@pytest.mark.parametrize(
    ("counts", "share", "edge"),
    [
        ({1.0: 99, 5.0: 1}, 0.99, 1.0),
        ({1.0: 98, 5.0: 2}, 0.99, 5.0),
        ({1.0: 99}, 0.99, None),
        ({1.0: 1, 2.0: 1}, 0.5, 1.0),
        ({1.0: 98, math.inf: 2}, 0.99, None),
        ({}, 0.5, None),
    ],
    ids=["at the edge", "beyond it", "too few", "median", "beyond all edges", "nothing"],
)
def test_quantile_edge__counts__is_the_edge_that_enough_stayed_within(
    counts: dict[float, int], share: float, edge: float | None
) -> None:
    assert quantile_edge(counts, share) == edge
