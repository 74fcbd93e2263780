from __future__ import annotations

from pathlib import Path

from mlctl.rollout.domain.shadow.join import AnswerSide, Joiner, Recorded


def row(name: str, number: int = 0) -> Recorded:
    return Recorded((name, number), "d", 0.0, {}, Path("segment"), number)


def joiner(grace: float = 10.0, capacity: int = 100) -> Joiner:
    return Joiner(grace, capacity)


def test_join__partner_in_either_order__makes_a_pair() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("b")], 0))
    (first,) = joining.join(AnswerSide.CANDIDATE, [row("a")], 1)
    (second,) = joining.join(AnswerSide.LIVE, [row("b")], 1)
    assert (first.live.key, first.candidate.key) == (("a", 0), ("a", 0))
    assert second.live.key == ("b", 0)


def test_join__rows_of_one_request__are_paired_by_number() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a", 0), row("a", 1)], 0))
    (pair,) = joining.join(AnswerSide.CANDIDATE, [row("a", 1)], 0)
    assert pair.live.key == ("a", 1)


def test_join__row_twice_on_one_side__makes_no_pair() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a"), row("a")], 0))
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))


def test_join__row_again_after_its_pair__makes_no_second_pair() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))
    assert len(list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))) == 1
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))


def test_expire__candidate_row_after_the_grace_time__is_lost() -> None:
    joining = joiner(grace=10)
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("b")], 0))
    assert joining.expire(10) == 0
    assert joining.expire(10.1) == 1
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 11))


def test_join__more_rows_than_capacity__loses_the_oldest() -> None:
    joining = joiner(capacity=3)
    assert not list(joining.join(AnswerSide.CANDIDATE, [row(str(n)) for n in range(10)], 0))
    assert joining.expire(0) == 7
    assert joining.expire(0) == 0
