from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.shadow import agreement
from mlctl.rollout.domain.shadow.agreement import (
    MIN_BAD_BLOCKS,
    ShadowEvidence,
    ShadowWindow,
    by_default,
    fold,
    require_copies,
)
from mlctl.rollout.domain.spec import Revision, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate

SPEC = RolloutSpec(shadow_percent=10, shadow_requests=50, max_disagreement=0.01)


def folded(ticks: int, window: ShadowWindow) -> ShadowEvidence:
    evidence = ShadowEvidence()
    for _ in range(ticks):
        evidence = fold(evidence, window, SPEC)
    return evidence


def test_fold__two_ticks__sums_and_keeps_the_last_drift() -> None:
    first = ShadowWindow(10, 1.0, 20, 2, 0, 1, None, 20)
    second = ShadowWindow(5, 0.0, 5, 0, 1, 0, 0.3, 25)
    total = fold(fold(ShadowEvidence(), first, SPEC), second, SPEC).total
    assert total == ShadowWindow(15, 1.0, 25, 2, 1, 1, 0.3, 25, seconds=0.0)


def test_fold__tick_without_pairs__adds_nothing() -> None:
    assert folded(5, ShadowWindow()) == ShadowEvidence()


def test_disagrees__fewer_bad_blocks_than_needed__is_not_found() -> None:
    everything = ShadowWindow(100, 100.0, 100, 100, seconds=5.0)
    assert agreement.disagrees(folded(MIN_BAD_BLOCKS - 1, everything), SPEC) is None
    verdict = agreement.disagrees(folded(MIN_BAD_BLOCKS, everything), SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate, verdict.n) == (Action.ROLLBACK, Gate.DISAGREEMENT, 300)


def test_doubtful__one_request_of_many_rows__counts_once() -> None:
    """1000 rows of one request that are all wrong weigh as one wrong answer in a hundred."""
    evidence = folded(1, ShadowWindow(100, 1.0, 1099, 1000))
    assert agreement.doubtful(evidence, SPEC) is None


def test_doubtful__too_much_disagreement__holds() -> None:
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
def test_by_default__variants_of_one_model__limit_follows_the_evidence(
    live: Revision, candidate: Revision, limit: float | None
) -> None:
    assert by_default(RolloutSpec(), live, candidate).max_disagreement == limit
    asked = RolloutSpec(max_disagreement=0.2)
    assert by_default(asked, live, candidate) is asked


@pytest.mark.parametrize(("percent", "can_copy"), [(20, False), (0, True)])
def test_require_copies__agreement_without_copies__is_rejected(
    percent: int, can_copy: bool
) -> None:
    spec = RolloutSpec(shadow_percent=percent, max_disagreement=0.01)
    with pytest.raises(MlctlError, match="cannot be proved") as refused:
        require_copies(spec, can_copy=can_copy)
    assert refused.value.code is ErrorCode.INVALID_INPUT
    require_copies(replace(spec, max_disagreement=None), can_copy=can_copy)
    require_copies(replace(spec, shadow_percent=20), can_copy=True)
