from __future__ import annotations

from dataclasses import replace

import pytest

from bundle.errors import ErrorCode, MlctlError
from rollout.domain import agreement
from rollout.domain.agreement import (
    MIN_BAD_BLOCKS,
    ShadowEvidence,
    by_default,
    fold,
    require_copies,
)
from rollout.domain.gates import Action, Gate
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import Revision, RolloutSpec

SPEC = RolloutSpec(shadow_percent=10, shadow_requests=50, max_disagreement=0.01)


def folded(ticks: int, window: ShadowWindow) -> ShadowEvidence:
    evidence = ShadowEvidence()
    for _ in range(ticks):
        evidence = fold(evidence, window, SPEC)
    return evidence


def test_looks_are_summed_and_the_last_drift_counts() -> None:
    first = ShadowWindow(10, 1.0, 20, 2, 0, 0.5, 1, None, 20)
    second = ShadowWindow(5, 0.0, 5, 0, 1, 0.1, 0, 0.3, 25)
    total = fold(fold(ShadowEvidence(), first, SPEC), second, SPEC).total
    assert total == ShadowWindow(15, 1.0, 25, 2, 1, 0.5, 1, 0.3, 25, seconds=0.0)


def test_a_look_without_pairs_is_no_evidence() -> None:
    assert folded(5, ShadowWindow()) == ShadowEvidence()


def test_disagreement_must_be_seen_in_several_ticks() -> None:
    everything = ShadowWindow(100, 100.0, 100, 100, seconds=5.0)
    assert agreement.disagrees(folded(MIN_BAD_BLOCKS - 1, everything), SPEC) is None
    verdict = agreement.disagrees(folded(MIN_BAD_BLOCKS, everything), SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate, verdict.n) == (Action.ROLLBACK, Gate.DISAGREEMENT, 300)


def test_one_request_counts_once_however_many_rows_it_has() -> None:
    """1000 rows of one request that are all wrong weigh as one wrong answer in a hundred."""
    evidence = folded(1, ShadowWindow(100, 1.0, 1099, 1000))
    assert agreement.doubtful(evidence, SPEC) is None


def test_too_much_disagreement_holds_before_it_is_proved() -> None:
    held = agreement.doubtful(folded(1, ShadowWindow(100, 2.0, 100, 2)), SPEC)
    assert held is not None
    assert (held.action, held.gate, held.value) == (Action.HOLD, Gate.DISAGREEMENT, 0.02)


def variant(source: str, agreement: float | None) -> Revision:
    return Revision("shop:1", "0" * 64, "shop", "1", source, agreement)


@pytest.mark.parametrize(
    ("live", "candidate", "limit"),
    [
        (variant("a", 1.0), variant("a", 1.0), 0.01),
        (variant("a", 0.995), variant("a", 0.98), 0.035),
        (variant("a", 0.1), variant("a", 0.1), 0.99),
        (variant("a", None), variant("a", 1.0), None),
        (variant("a", 1.0), variant("b", 1.0), None),
    ],
)
def test_variants_of_one_model_have_to_agree_as_far_as_was_proved(
    live: Revision, candidate: Revision, limit: float | None
) -> None:
    assert by_default(RolloutSpec(), live, candidate).max_disagreement == limit
    asked = RolloutSpec(max_disagreement=0.2)
    assert by_default(asked, live, candidate) is asked


@pytest.mark.parametrize(("percent", "can_copy"), [(20, False), (0, True)])
def test_agreement_that_nothing_could_show_is_refused(percent: int, can_copy: bool) -> None:
    spec = RolloutSpec(shadow_percent=percent, max_disagreement=0.01)
    with pytest.raises(MlctlError, match="cannot be proved") as refused:
        require_copies(spec, can_copy=can_copy)
    assert refused.value.code is ErrorCode.INVALID_INPUT
    require_copies(replace(spec, max_disagreement=None), can_copy=can_copy)
    require_copies(replace(spec, shadow_percent=20), can_copy=True)
