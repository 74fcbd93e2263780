import pytest

from mlctl.services.online.batching.admission import OfferedLoad


def test_utilization__one_burst__is_below_one() -> None:
    load = OfferedLoad()
    load.offered(10_000)
    load.ended(64, 1.0)
    assert load.utilization < 1.0
    load.offered(3 * 64)
    load.ended(64, 1.0)
    assert load.utilization > 1.0


def test_utilization__idle_for_a_while__falls() -> None:
    load = OfferedLoad()
    for _ in range(20):
        load.offered(300)
        load.ended(64, 1.0)
    assert load.utilization > 2.9
    load.idle(0.01)  # the loop was late to read what had come
    assert load.utilization > 2.9
    load.idle(20)
    assert load.utilization < 0.5


def test_utilization__full_batches__is_one() -> None:
    load = OfferedLoad()
    for _ in range(60):
        load.offered(64)
        load.ended(64, 1.0)
    assert load.utilization == pytest.approx(1.0, rel=0.01)
    load.ended(0.0, 0.5)  # no cost is known yet
    assert load.utilization < 1.0


def test_utilization__short_batches__count_by_their_time() -> None:
    """Forty clients in a loop, batches of 32 and of 8: no more comes than is answered."""
    load, seen = OfferedLoad(), []
    for _ in range(60):
        load.offered(8)
        load.ended(32, 1.0)
        load.offered(32)
        load.ended(8, 0.25)
        seen.append(load.utilization)
    assert 0.8 < max(seen) < 1.0
