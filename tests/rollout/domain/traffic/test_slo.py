from __future__ import annotations

import pytest

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS
from mlctl.rollout.domain.traffic.slo import SLOS, counted, limits


def test_slos__each_name__has_its_limits() -> None:
    assert SLOS == {
        "ad-click": (10, 20),
        "search-ranking": (50, 100),
        "recommendation-feed": (100, 200),
        "fraud-detection": (100, 500),
        "content-moderation": (500, 2000),
        "autonomous-driving": (10, 30),
        "image-generation": (10_000, 30_000),
    }


@pytest.mark.parametrize("edges", [LATENCY_EDGES_MS, SERVED_EDGES_MS], ids=["proxy", "servers"])
@pytest.mark.parametrize("slo", SLOS.values(), ids=str)
def test_slos__each_limit__is_an_edge_of_the_histograms(
    slo: tuple[float, float], edges: tuple[float, ...]
) -> None:
    spec = RolloutSpec(max_p50_ms=slo[0], max_p99_ms=slo[1])
    assert counted(spec, edges) == spec


@pytest.mark.parametrize("edges", [LATENCY_EDGES_MS, SERVED_EDGES_MS], ids=["proxy", "servers"])
def test_counted__limit_above_ten_seconds__never_judged_below_it(edges: tuple[float, ...]) -> None:
    for limit in (10_001.0, 25_000.0, 60_000.0):
        judged = counted(RolloutSpec(max_p99_ms=limit), edges).max_p99_ms
        assert judged is not None
        assert limit <= judged <= 60_000.0


def test_counted__limit_beyond_the_last_edge__refused() -> None:
    with pytest.raises(MlctlError, match="30000 ms cannot be judged") as caught:
        counted(RolloutSpec(max_p99_ms=30_000.0), (100.0, 10_000.0))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_limits__explicit_value__overrides_the_name() -> None:
    assert limits("search-ranking") == (50, 100)
    assert limits("search-ranking", max_p99_ms=80) == (50, 80)
    assert limits("search-ranking", 20, 80) == (20, 80)
    assert limits(None, None, 80) == (None, 80)


def test_limits__unknown_name__lists_the_names() -> None:
    with pytest.raises(MlctlError) as raised:
        limits("search")
    assert raised.value.code is ErrorCode.INVALID_INPUT
    assert "search-ranking" in raised.value.message


def test_counted__limit_between_two_edges__is_rounded_up() -> None:
    spec = counted(RolloutSpec(max_p50_ms=10.4, max_p99_ms=101.0))
    assert (spec.max_p50_ms, spec.max_p99_ms) == (11.0, 110.0)
    answers = counted(RolloutSpec(max_ttft_ms=310.0, max_tpot_ms=1.2))
    assert (answers.max_ttft_ms, answers.max_tpot_ms) == (500.0, 2.5)
    assert counted(RolloutSpec()) == RolloutSpec()
