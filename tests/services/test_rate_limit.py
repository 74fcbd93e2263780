from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.services.rate_limit import RateLimit

MONTHS = 1e7


@pytest.mark.parametrize(
    ("rate", "burst"), [(0.5, 1), (1, 1), (1.5, 1), (3, 3), (10, 10), (999, 999)]
)
@pytest.mark.parametrize("now", [0.0, MONTHS])
def test_take__a_burst_after_a_rest__is_a_seconds_worth_and_at_least_one(
    rate: float, burst: int, now: float
) -> None:
    limit = RateLimit(rate)
    admitted = 0
    while not (wait := limit.take(now)):
        admitted += 1
    assert admitted == burst
    assert limit.take(now) == wait  # a rejection costs nothing
    assert wait <= 1 / rate + 1e-6
    assert limit.take(now + wait) == 0.0
    assert limit.take(now + wait) > 0.0


@given(
    st.floats(0.1, 1000),
    st.lists(st.floats(0, 3), min_size=1, max_size=200),
    st.floats(0, MONTHS),
)
def test_take__any_arrivals__never_more_than_rate_and_burst(
    rate: float, pauses: list[float], start: float
) -> None:
    limit, now, admitted = RateLimit(rate), start, 0
    for pause in pauses:
        now += pause
        if not limit.take(now):
            admitted += 1
    assert admitted <= max(1.0, rate) + (now - start) * rate + 1e-3


def test_take__steady_arrivals_at_the_rate__are_all_admitted() -> None:
    limit = RateLimit(7)
    assert not any(limit.take(MONTHS + number / 7) for number in range(100_000))
