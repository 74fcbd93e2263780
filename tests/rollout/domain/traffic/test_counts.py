from __future__ import annotations

from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import Counts, LatencyRule, Reading, Totals, difference

EDGES = (10.0, 20.0, 50.0)


def totals(n: int, errors: int, *within: int) -> Totals:
    return Totals(n, errors, within[-1], within)


def reading(blue: Totals, green: Totals) -> Reading:
    totals_ = {Slot.BLUE: blue, Slot.GREEN: green}
    return Reading(totals_, dict.fromkeys(Slot, True), dict.fromkeys(Slot, 0))


def test_difference__two_readings__is_the_tick() -> None:
    before = reading(totals(5, 1, 1, 2, 5), totals(0, 0, 0, 0, 0))
    after = reading(totals(9, 2, 2, 4, 9), totals(3, 0, 3, 3, 3))
    parts = difference(before, after)
    assert parts == {Slot.BLUE: totals(4, 1, 1, 2, 4), Slot.GREEN: totals(3, 0, 3, 3, 3)}


def test_difference__restarted_proxy__is_none() -> None:
    before = reading(totals(5, 0, 5, 5, 5), totals(0, 0, 0, 0, 0))
    after = reading(totals(2, 0, 2, 2, 2), totals(3, 0, 3, 3, 3))
    assert difference(before, after) is None
    assert difference(None, after) is None


def test_slower_than__limit_at_an_edge__counts_exactly() -> None:
    part = totals(10, 0, 4, 7, 10)
    assert part.slower_than(10.0, EDGES) == 6
    assert part.slower_than(20.0, EDGES) == 3
    assert part.slower_than(15.0, EDGES) == 3  # the first edge at or above
    assert part.slower_than(999.0, EDGES) == 0
    assert Totals().slower_than(10.0, EDGES) == 0


def test_p99_edge__fewer_than_100_samples__is_none() -> None:
    assert totals(99, 0, 99, 99, 99).p99_edge(EDGES) is None
    assert totals(100, 0, 98, 99, 100).p99_edge(EDGES) == 20.0


def test_latency_rule__candidate__has_the_margin_over_the_reference() -> None:
    rule = LatencyRule(EDGES, limit_ms=50.0, reference_ms=10.0, margin=1.0)
    part = totals(10, 2, 4, 7, 9)
    part = Totals(10, 2, 10, part.within)
    assert rule.count(part, candidate=True) == Counts(10, 2, 10, slow=1, tail=3)
    assert rule.count(part, candidate=False) == Counts(10, 2, 10, slow=1, tail=6)


def test_latency_rule__abandoned_requests__are_in_the_total_only() -> None:
    part = Totals(3, 0, 3, (3, 3, 3), client_errors=5, abandoned=4)
    rule = LatencyRule(EDGES, limit_ms=None, reference_ms=None, margin=0.0)
    counts = rule.count(part.plus(part).minus(part) or Totals(), candidate=True)
    assert (counts.requests, counts.client_errors, counts.abandoned, counts.total) == (3, 3, 4, 7)
    assert Totals(within=(0, 0, 0)).minus(part) is None


def test_latency_rule__no_limits__counts_no_slow_requests() -> None:
    rule = LatencyRule(EDGES, limit_ms=None, reference_ms=None, margin=0.0)
    assert rule.count(totals(3, 5, 0, 0, 3), candidate=True) == Counts(3, 3, 3, 0, 0)
