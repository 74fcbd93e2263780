"""The verdict of the soak test on hand-made samples."""

from __future__ import annotations

import pytest

from benchmarks.soak import Sample, judge


def samples(*sizes: float, pid: int = 7) -> list[Sample]:
    return [Sample(float(at), {pid: size}, 1, 1.0, 1.0) for at, size in enumerate(sizes, start=1)]


def test_soak__memory_grows_in_the_first_fifth__passes() -> None:
    assert judge(samples(10, 90, *[100] * 8), 0) == []


@pytest.mark.parametrize(("last", "fails"), [(109, False), (112, True)])
def test_soak__memory_grows_later__fails_above_a_tenth(last: float, fails: bool) -> None:
    assert bool(judge(samples(10, 90, *[100] * 4, *[last] * 4), 0)) is fails


def test_soak__one_high_sample__passes() -> None:
    assert judge(samples(*[100.0] * 17, 150, 100, 100), 0) == []


def test_soak__process_was_replaced__fails() -> None:
    replaced = [*samples(*[100.0] * 10), *samples(*[100.0] * 10, pid=8)]
    assert [reason.split()[1] for reason in judge(replaced, 0)] == ["7", "8"]


def test_soak__good_requests_failed_or_no_sample__fails() -> None:
    assert judge(samples(*[100.0] * 10), 3) == ["3 good requests failed"]
    assert judge([], 0) == ["the run was too short to judge"]
