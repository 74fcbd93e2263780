from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.rollout.domain.traffic.counts import Totals
from mlctl.rollout.drivers.kubernetes.scrape import NOTHING, PodTally, read_totals
from tests.support.kube import FakePod


def totals(n: int) -> Totals:
    return Totals(n, 0, n, (n,) * len(SERVED_EDGES_MS))


def test_read_totals__fresh_server__is_zero() -> None:
    assert read_totals(FakePod("x", "a" * 64).get("/metrics")[1].decode()) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "",
        'mlctl_requests_total{model="m",outcome="ok",protocol="http"} 1.0\n',
        'mlctl_request_seconds_bucket{le="0.1",model="m"} 1.0\n',
        "what is this",
    ],
)
def test_read_totals__other_metrics__are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_totals(text)


def test_read_totals__unknown_outcome__is_an_error() -> None:
    pod = FakePod("x", "a" * 64)
    pod.serve(2, outcome="a_code_of_tomorrow")
    assert read_totals(pod.get("/metrics")[1].decode()).errors == 2


def test_read_totals__rejected_by_a_clients_limit__is_no_request() -> None:
    pod = FakePod("x", "a" * 64)
    pod.serve(2, outcome="rate_limit_exceeded")
    pod.serve(1, outcome="queue_full")
    found = read_totals(pod.get("/metrics")[1].decode())
    assert (found.requests, found.errors, found.client_errors) == (1, 1, 0)


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), max_size=8))
def test_pod_tally__any_restarts__counts_each_increment_once(
    lives: list[list[int]],
) -> None:
    """Each life of the pod rises from zero; a tick follows each rise."""
    tally, expected, seen = PodTally(), 0, 0
    tally.add({"pod": totals(0)}, {"pod"})
    for life in lives:
        count = 0
        for rise in life:
            count += rise
            # A restart that has already counted more than before looks like a rise.
            expected += count - seen if count >= seen else count
            seen = count
            tally.add({"pod": totals(count)}, {"pod"})
    assert tally.total.requests == expected


def test_pod_tally__pod_silent_for_a_while__is_counted_afterwards() -> None:
    tally = PodTally()
    tally.add({"pod": totals(5)}, {"pod"})
    tally.add({}, {"pod"})
    tally.add({"pod": totals(8)}, {"pod"})
    assert tally.total.requests == 3
    tally.add({}, set())
    tally.add({"pod": totals(9)}, {"pod"})
    assert tally.total.requests == 3
