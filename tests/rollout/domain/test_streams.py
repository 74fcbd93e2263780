"""Two streams of answers: what agrees, what differs, and what is no proof of either."""

from __future__ import annotations

import numpy as np
import pytest

from rollout.domain.compare import Answer
from rollout.domain.spec import RolloutSpec
from rollout.domain.streams import judge_streams
from rollout.domain.verdict import Action, Gate

SPEC = RolloutSpec(max_disagreement=0.05)


def answers(count: int, other: float = 0.0, share: float = 0.0) -> dict[str, Answer | None]:
    """By source; `share` of them, drawn by chance, is off by `other`."""
    random = np.random.default_rng(7)
    values = random.normal(10.0, 3.0, count)
    wrong = random.random(count) < share
    return {str(i): {"y": np.asarray(values[i] + other * wrong[i])} for i in range(count)}


def test_judge_streams__equal_answers__advances() -> None:
    found = judge_streams(answers(2000), answers(2000, 1.0, share=0.005), SPEC)
    assert found.verdict.action is Action.ADVANCE
    assert found.window.requests == 2000
    assert 0 < found.window.differed < 40
    assert len(found.differing) == min(10, found.window.differed)


def test_judge_streams__worse_candidate__rolls_back() -> None:
    found = judge_streams(answers(2000), answers(2000, 5.0, share=0.2), SPEC)
    assert (found.verdict.action, found.verdict.gate) == (Action.ROLLBACK, Gate.DISAGREEMENT)


def test_judge_streams__dead_letter_of_the_candidate_only__disagrees() -> None:
    live, candidate = answers(1000), answers(1000)
    for source in [*live][::5]:
        candidate[source] = None
    assert judge_streams(live, candidate, SPEC).verdict.action is Action.ROLLBACK
    # Of messages that live cannot answer either, nothing is told.
    both = judge_streams(dict(candidate), candidate, SPEC)
    assert (both.window.requests, both.window.differed) == (800, 0)


@pytest.mark.parametrize("count", [0, 30])
def test_judge_streams__few_messages__holds(count: int) -> None:
    assert judge_streams(answers(count), answers(count), SPEC).verdict.action is Action.HOLD


def test_judge_streams__field_of_one_side_only__is_left_out() -> None:
    live = {source: {**each, "id": np.asarray(7)} for source, each in answers(500).items() if each}
    found = judge_streams(live, answers(500), SPEC)
    assert (found.verdict.action, found.left_out) == (Action.ADVANCE, ["id"])
    other = {source: {"z": each["y"]} for source, each in live.items()}
    assert judge_streams(live, other, SPEC).verdict.action is Action.ROLLBACK


def test_judge_streams__candidate_answers_nan__rolls_back() -> None:
    live, candidate = answers(100), answers(100)
    candidate["7"] = {"y": np.asarray(np.nan)}
    found = judge_streams(live, candidate, SPEC)
    assert (found.verdict.action, found.verdict.gate) == (Action.ROLLBACK, Gate.NON_FINITE)
    assert found.differing == ["7"]
