from __future__ import annotations

from pathlib import Path

from rollout.domain.join import AnswerSide, Joiner, Recorded


def row(name: str, number: int = 0) -> Recorded:
    return Recorded((name, number), "d", 0.0, {}, Path("segment"), number)


def joiner(grace: float = 10.0, capacity: int = 100) -> Joiner:
    return Joiner(grace, capacity)


def test_the_partner_may_come_in_either_order() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("b")], 0))
    (first,) = joining.join(AnswerSide.CANDIDATE, [row("a")], 1)
    (second,) = joining.join(AnswerSide.LIVE, [row("b")], 1)
    assert (first.live.key, first.candidate.key) == (("a", 0), ("a", 0))
    assert second.live.key == ("b", 0)


def test_rows_of_one_request_are_joined_by_their_number() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a", 0), row("a", 1)], 0))
    (pair,) = joining.join(AnswerSide.CANDIDATE, [row("a", 1)], 0)
    assert pair.live.key == ("a", 1)


def test_what_came_twice_is_ambiguous() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a"), row("a")], 0))
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))


def test_what_comes_again_after_its_pair_makes_no_second_one() -> None:
    joining = joiner()
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))
    assert len(list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))) == 1
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 0))


def test_a_row_of_the_candidate_without_partner_is_lost_after_the_grace_time() -> None:
    joining = joiner(grace=10)
    assert not list(joining.join(AnswerSide.CANDIDATE, [row("a")], 0))
    assert not list(joining.join(AnswerSide.LIVE, [row("b")], 0))
    assert joining.expire(10) == 0
    assert joining.expire(10.1) == 1
    assert not list(joining.join(AnswerSide.LIVE, [row("a")], 11))


def test_memory_is_bounded() -> None:
    joining = joiner(capacity=3)
    assert not list(joining.join(AnswerSide.CANDIDATE, [row(str(n)) for n in range(10)], 0))
    assert joining.expire(0) == 7
    assert joining.expire(0) == 0
