"""The soak's verdict, by hand-made samples."""

from __future__ import annotations

import pytest

from benchmarks.soak import Sample, judge


def samples(*sizes: float, pid: int = 7) -> list[Sample]:
    return [Sample(float(at), {pid: size}, 1, 1.0, 1.0) for at, size in enumerate(sizes, start=1)]


def test_what_fills_in_the_first_fifth_is_no_growth() -> None:
    assert judge(samples(10, 90, *[100] * 8), 0) == []


@pytest.mark.parametrize(("last", "fails"), [(109, False), (112, True)])
def test_growth_after_it_is_judged_by_a_tenth(last: float, fails: bool) -> None:
    assert bool(judge(samples(10, 90, *[100] * 4, *[last] * 4), 0)) is fails


def test_one_high_moment_is_no_growth() -> None:
    assert judge(samples(*[100.0] * 17, 150, 100, 100), 0) == []


def test_a_process_that_was_replaced_fails() -> None:
    replaced = [*samples(*[100.0] * 10), *samples(*[100.0] * 10, pid=8)]
    assert [reason.split()[1] for reason in judge(replaced, 0)] == ["7", "8"]


def test_a_good_request_that_failed_fails_and_so_does_a_run_of_nothing() -> None:
    assert judge(samples(*[100.0] * 10), 3) == ["3 good requests failed"]
    assert judge([], 0) == ["the run was too short to tell"]
