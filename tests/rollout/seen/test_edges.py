from __future__ import annotations

import math

import pytest

from rollout.judging.counts import Totals
from rollout.seen.edges import joined, quantile_edge, sparse

EDGES = (1.0, 2.0, 5.0)


def test_only_what_was_counted_is_kept() -> None:
    totals = Totals(requests=12, timed=12, within=(0, 7, 9))
    assert sparse(totals, EDGES) == [(2.0, 7), (5.0, 2), (None, 3)]
    assert sparse(Totals(), EDGES) == []


def test_histograms_add_up_as_they_come_back_from_json() -> None:
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
def test_a_quantile_is_an_edge_that_enough_stayed_within(
    counts: dict[float, int], share: float, edge: float | None
) -> None:
    assert quantile_edge(counts, share) == edge
