"""Latency limits by the name of a use case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlctl.bundle.latency import FIRST_TOKEN_EDGES_MS, TOKEN_EDGES_MS
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS, latency_edge

# The limits of p50 and p99 in milliseconds. Targets of common practice; each is an exact edge of
# every histogram that a gate reads. None is for a first token: gates time whole answers.
SLOS = {
    "ad-click": (10.0, 20.0),
    "search-ranking": (50.0, 100.0),
    "recommendation-feed": (100.0, 200.0),
    "fraud-detection": (100.0, 500.0),
    "content-moderation": (500.0, 2000.0),
    "autonomous-driving": (10.0, 30.0),
    "image-generation": (10_000.0, 30_000.0),
}


def limits(
    name: str | None, max_p50_ms: float | None = None, max_p99_ms: float | None = None
) -> tuple[float | None, float | None]:
    """The limits of p50 and p99 in milliseconds: of the use case, unless given by themselves.

    INVALID_INPUT for a name that is not in the table.
    """
    if name is None:
        return max_p50_ms, max_p99_ms
    slo = SLOS.get(name)
    if slo is None:
        names = ", ".join(SLOS)
        raise MlctlError(ErrorCode.INVALID_INPUT, f"no use case {name!r}; there are {names}")
    p50, p99 = slo
    return p50 if max_p50_ms is None else max_p50_ms, p99 if max_p99_ms is None else max_p99_ms


def counted(spec: RolloutSpec, edges: tuple[float, ...] = LATENCY_EDGES_MS) -> RolloutSpec:
    """The spec with its latency limits rounded up to edges at which requests can be counted."""
    limits = {
        "max_p50_ms": edges,
        "max_p99_ms": edges,
        "max_ttft_ms": FIRST_TOKEN_EDGES_MS,
        "max_tpot_ms": TOKEN_EDGES_MS,
    }
    given = {name: getattr(spec, name) for name in limits}
    rounded: dict[str, Any] = {
        name: latency_edge(limit, limits[name])
        for name, limit in given.items()
        if limit is not None
    }
    return replace(spec, **rounded)
