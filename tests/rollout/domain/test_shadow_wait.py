"""How long a shadow waits for answers that do not come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.rollout.domain.shadow.agreement import (
    UNRECORDED_SECONDS,
    ShadowEvidence,
    ShadowWindow,
    given_up,
)
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action

SPEC = RolloutSpec(shadow_percent=20, shadow_requests=50, shadow_wait_seconds=100.0)
NONE = ShadowEvidence()
SOME = ShadowEvidence(total=ShadowWindow(requests=30))


@pytest.mark.parametrize(
    ("evidence", "copies", "waited", "why"),
    [
        (NONE, 50, UNRECORDED_SECONDS, "recorded none of 50 copied requests"),
        (NONE, 0, 100.0, "0 copied requests and 0 compared answers in 100 s are too few"),
        (NONE, 49, 100.0, "49 copied requests"),
        (SOME, 400, 100.0, "30 compared answers"),
    ],
)
def test_given_up__too_few_answers__verdict_with_a_reason(
    evidence: ShadowEvidence, copies: int, waited: float, why: str
) -> None:
    verdict = given_up(evidence, SPEC, copies, waited)
    assert verdict is not None
    assert verdict.action is Action.ADVANCE
    assert why in verdict.why


@pytest.mark.parametrize(
    ("evidence", "copies", "waited"),
    [
        (NONE, 50, UNRECORDED_SECONDS - 1),  # what was recorded may be on its way
        (NONE, 49, 99.0),
        (SOME, 400, 99.0),  # some come, so more may
    ],
)
def test_given_up__answers_may_come__none(
    evidence: ShadowEvidence, copies: int, waited: float
) -> None:
    assert given_up(evidence, SPEC, copies, waited) is None


def test_given_up__no_limit__none() -> None:
    endless = replace(SPEC, shadow_wait_seconds=None)
    assert given_up(NONE, endless, 10_000, 3000.0) is None
