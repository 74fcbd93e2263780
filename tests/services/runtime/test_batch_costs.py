import pytest

from services.runtime.batch_costs import BatchCosts


def test_nothing_is_known_before_the_first_batch() -> None:
    assert BatchCosts().seconds(1) == 0.0


def test_between_the_known_sizes_it_is_a_line_and_above_in_proportion() -> None:
    costs = BatchCosts({1: 2.0, 8: 9.0})
    assert [costs.seconds(rows) for rows in (1, 4, 8, 16)] == pytest.approx([2, 5, 9, 18])
    assert BatchCosts({8: 3.0}).seconds(1) == 3.0


def test_one_stall_does_not_move_it_and_a_lasting_change_does() -> None:
    costs = BatchCosts({1: 1.0})
    for seconds in (1.0, 1.0, 90.0, 1.0):
        costs.observe(1, seconds)
    assert costs.seconds(1) == 1.0
    for _ in range(4):
        costs.observe(1, 3.0)
    assert costs.seconds(1) == 3.0


def test_large_batches_say_nothing_about_small_ones() -> None:
    costs = BatchCosts({1: 1.0, 64: 10.0})
    for _ in range(100):
        costs.observe(64, 50.0)
    assert costs.seconds(1) == 1.0
    assert costs.seconds(64) == 50.0


def test_more_rows_never_cost_less() -> None:
    costs = BatchCosts({1: 30.0, 4: 5.0, 16: 8.0, 64: 7.0})
    seconds = [costs.seconds(rows) for rows in range(1, 200)]
    assert seconds == sorted(seconds)
    assert costs.seconds(1) == 5.0  # four rows were done in that


def test_the_sizes_of_a_cell_are_taken_as_they_are() -> None:
    costs = BatchCosts()
    for rows in (5, 6, 7):
        costs.observe(rows, rows / 10)
    assert costs.seconds(6) == pytest.approx(0.6)
