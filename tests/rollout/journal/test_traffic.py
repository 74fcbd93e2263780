"""The work of each hour that `mlctl status` judges."""

from __future__ import annotations

import pytest

from mlctl.rollout.domain.traffic.batch_traffic import KEPT_HOURS, TrafficHour
from mlctl.rollout.journal.traffic import HourlyTraffic, read_traffic
from tests.support.clock import ManualClock


@pytest.mark.usefixtures("home")
def test_hourly_traffic__hour_is_over__is_recorded_with_its_workers() -> None:
    clock = ManualClock()
    clock.advance(1800.0 - clock.wall() % 3600.0)
    began, work = clock.wall(), [(30.0, 0.5), (50.0, 0.25)]
    traffic = HourlyTraffic("shop", work.pop, clock)
    traffic.observe(2)
    assert read_traffic("shop") == ()
    for _ in range(2):
        clock.advance(3600.0)
        traffic.observe(2)
    assert read_traffic("shop") == (
        TrafficHour(began, 50.0, 0.25, 7200.0),
        TrafficHour(began + 3600.0, 30.0, 0.5, 7200.0),
    )


@pytest.mark.usefixtures("home")
def test_hourly_traffic__more_than_a_week__keeps_the_newest_hours() -> None:
    clock = ManualClock()
    traffic = HourlyTraffic("shop", lambda: (1.0, 1.0), clock)
    for _ in range(KEPT_HOURS + 2):
        clock.advance(3600.0)
        traffic.observe(1)
    kept = read_traffic("shop")
    assert len(kept) == KEPT_HOURS
    assert kept[-1].start == clock.wall() - 3600.0
