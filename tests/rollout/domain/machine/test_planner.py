from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine.planner import Today, plan, requests_to_prove, today
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.traffic.counts import Totals

SPEC = RolloutSpec(steps=(10, 50, 100), step_seconds=10, min_requests=50, bake_seconds=30)
EDGES = (50.0, 100.0)


@pytest.mark.parametrize(
    ("share", "limit"), [(0.0, 0.01), (0.001, 0.01), (0.005, 0.01), (0.3, 0.5)]
)
def test_requests_to_prove__simulated_proofs__is_within_a_factor_of_two(
    share: float, limit: float
) -> None:
    """200 seeded proofs, a request at a time in steps of 10; the median within a factor of 2."""
    expected = requests_to_prove(share, limit, alpha=0.05)
    generator, needed = np.random.default_rng(7), []
    for _ in range(200):
        hits, n = 0, 1
        while e_values.log_mean(e_values.below((hits, n), limit)) < math.log(20):
            hits, n = hits + int(generator.binomial(10, share)), n + 10
            if n > 20 * expected:
                break
        needed.append(n)
    assert expected / 2 - 10 <= float(np.median(needed)) <= 2 * expected + 10


def test_requests_to_prove__share_at_the_limit__is_infinite() -> None:
    assert requests_to_prove(0.01, 0.01, alpha=0.05) == math.inf
    assert requests_to_prove(0.02, 0.01, alpha=0.05) == math.inf


def test_plan__each_step__has_its_reason_and_time() -> None:
    planned = plan(SPEC, Today(10.0), tick_seconds=0.5)
    phases = [(step.phase, step.weight) for step in planned.steps]
    assert phases == [(RolloutPhase.SHIFT, 10), (RolloutPhase.SHIFT, 50), (RolloutPhase.BAKE, 100)]
    first, half, bake = planned.steps
    assert (first.requests, first.seconds) == (50, 50 + SPEC.warmup_seconds)
    assert half.why == "proof of the error rate"
    assert half.seconds == pytest.approx(half.requests / 5.0)
    assert (bake.why, bake.seconds) == ("minimum time", 30.0)
    assert planned.ends


def test_plan__latency_limit_at_a_small_share__does_not_end() -> None:
    limited = replace(SPEC, steps=(10, 50, 100), max_p99_ms=100.0)
    enough = 1e6  # so much traffic that only the minimum times count
    assert plan(limited, Today(enough), 0.5).ends
    small = replace(limited, steps=(10, 25, 100))
    assert not plan(small, Today(enough), 0.5).ends
    assert plan(replace(small, allow_low_weight_proof=True), Today(enough), 0.5).ends


def test_plan__shadow__waits_for_its_copies() -> None:
    spec = replace(SPEC, shadow_percent=10, shadow_requests=100_000)
    shadow = plan(spec, Today(100.0), 0.5).steps[0]
    assert (shadow.phase, shadow.requests, shadow.seconds) == (
        RolloutPhase.SHADOW,
        100_000,
        10_000.0,
    )
    bounded = plan(replace(spec, shadow_wait_seconds=120), Today(100.0), 0.5).steps[0]
    assert bounded.seconds == 120.0
    assert "its verdict is left out" in bounded.why


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_require_end__too_little_traffic__names_the_longest_step(rate: float) -> None:
    planned = plan(SPEC, Today(rate), 0.5)
    assert not planned.ends
    with pytest.raises(MlctlError) as refused:
        planned.require_end()
    assert refused.value.code is ErrorCode.INSUFFICIENT_TRAFFIC
    assert "the deadline is 3600 s" in refused.value.message


def test_plan__live_is_beyond_the_limit__does_not_end() -> None:
    assert not plan(SPEC, Today(1000.0, errors=0.02), 0.5).ends


def test_today__counted_traffic__is_below_the_counts_by_the_noise() -> None:
    limited = replace(SPEC, max_p50_ms=50.0, max_p99_ms=100.0)
    counted = Totals(20_000, 400, 20_000, within=(15_000, 19_000))
    measured = today(counted, 4.0, limited, EDGES)
    assert measured.per_second == 5000.0
    told = (measured.errors, measured.late, measured.slow)
    assert told == pytest.approx((0.02, 0.25, 0.05), rel=0.1)
    assert all(share < seen for share, seen in zip(told, (0.02, 0.25, 0.05), strict=True))
    assert today(Totals(within=(0, 0)), 4.0, limited, EDGES) == Today(0.0)


def test_plan__one_bad_request_of_few__ends() -> None:
    few = Totals(50, 1, 50, within=(50, 50))
    assert plan(SPEC, today(few, 1.0, SPEC, EDGES), 0.5).ends
