"""The hint that a batch job would answer a deployment's traffic for less."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from mlctl.rollout.domain.traffic.batch_traffic import TrafficHour, batch_hint

# Monday, 2026-11-16, 00:00 UTC.
MIDNIGHT = 1_794_787_200.0


def week(
    rows: Mapping[int, float], days: int = 7, model_us: float = 10.0, **more: float
) -> list[TrafficHour]:
    """Hours of `days` days with two workers; `rows` by the hour of the day."""
    found = []
    for number in range(days * 24):
        count = rows.get(number % 24, 0.0) * more.get(f"day{number // 24}", 1.0)
        start = MIDNIGHT + 3600.0 * number
        found.append(TrafficHour(start, count, count * model_us / 1e6, 7200.0))
    return found


def test_batch_hint__steady_nightly_peak__compares_core_hours() -> None:
    found = batch_hint(week({1: 2e6, 2: 1.6e6, 14: 1e5}))
    assert found is not None
    assert (found.peak_start, found.peak_hours) == (1, 2)
    figures = (found.rows, found.share, found.batch_core_hours, found.online_core_hours)
    assert figures == pytest.approx((3.7e6, 36 / 37, 3.7e6 * 10e-6 / 3600, 48.0))
    assert found.sentence() == (
        "97 % of 3,700,000 rows a day come between 01:00 and 03:00 UTC: a batch job takes about "
        "0.01 core-hours a day, the workers reserve 48"
    )


def test_batch_hint__peak_over_midnight__is_one_peak() -> None:
    found = batch_hint(week({23: 5e5, 0: 5e5}))
    assert found is not None
    assert (found.peak_start, found.peak_hours) == (23, 2)
    assert "between 23:00 and 01:00 UTC" in found.sentence()


@pytest.mark.parametrize(
    "hours",
    [
        pytest.param([], id="no traffic"),
        pytest.param(week({1: 2e6}, days=2), id="two days"),
        pytest.param(week({1: 9e4}), id="few rows"),
        pytest.param(week(dict.fromkeys(range(24), 2000000.0)), id="all day"),
        pytest.param(week({1: 2e6, 12: 3e5}), id="a sixth by day"),
        pytest.param(week(dict.fromkeys(range(1, 6), 1e6)), id="a peak of five hours"),
        pytest.param(
            week({1: 2e6}, day0=0.0, day1=0.0, day3=0.0, day4=0.0, day6=0.0), id="two of seven days"
        ),
        # 24.1 of 48 core-hours.
        pytest.param(week({1: 2e6}, model_us=24.1 * 3600 / 2), id="expensive model"),
    ],
)
def test_batch_hint__other_traffic__is_none(hours: list[TrafficHour]) -> None:
    assert batch_hint(hours) is None


def test_batch_hint__each_limit__is_reached() -> None:
    assert batch_hint(week({1: 1e5}, days=3)) is not None
    assert batch_hint(week(dict.fromkeys(range(1, 5), 1e6))) is not None
    # 23.9 of 48 core-hours.
    found = batch_hint(week({1: 2e6}, model_us=23.9 * 3600 / 2))
    assert found is not None
    assert math.isclose(found.batch_core_hours, 23.9)
