import pytest

from mlctl.services.model.batch_costs import BatchCosts


def test_seconds__no_batch_observed__is_zero() -> None:
    assert BatchCosts().seconds(1) == 0.0


def test_seconds__between_or_above_known_sizes__is_interpolated() -> None:
    costs = BatchCosts({1: 2.0, 8: 9.0})
    assert [costs.seconds(rows) for rows in (1, 4, 8, 16)] == pytest.approx([2, 5, 9, 18])
    assert BatchCosts({8: 3.0}).seconds(1) == 3.0


def test_observe__one_stall_or_a_lasting_change__only_the_latter_counts() -> None:
    costs = BatchCosts({1: 1.0})
    for seconds in (1.0, 1.0, 90.0, 1.0):
        costs.observe(1, seconds)
    assert costs.seconds(1) == 1.0
    for _ in range(4):
        costs.observe(1, 3.0)
    assert costs.seconds(1) == 3.0


def test_observe__large_batches__leave_small_ones_unchanged() -> None:
    costs = BatchCosts({1: 1.0, 64: 10.0})
    for _ in range(100):
        costs.observe(64, 50.0)
    assert costs.seconds(1) == 1.0
    assert costs.seconds(64) == 50.0


def test_seconds__more_rows__never_cost_less() -> None:
    costs = BatchCosts({1: 30.0, 4: 5.0, 16: 8.0, 64: 7.0})
    seconds = [costs.seconds(rows) for rows in range(1, 200)]
    assert seconds == sorted(seconds)
    assert costs.seconds(1) == 5.0  # four rows were done in that


def test_seconds__observed_sizes__are_exact() -> None:
    costs = BatchCosts()
    for rows in (5, 6, 7):
        costs.observe(rows, rows / 10)
    assert costs.seconds(6) == pytest.approx(0.6)
