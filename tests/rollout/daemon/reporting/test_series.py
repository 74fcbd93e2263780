from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.rollout.daemon.reporting.series import Series, SeriesPoint
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from tests.support.played import Played


def points(played: Played, start: int = 0) -> list[SeriesPoint]:
    rollout = played.controller.rollout
    series = Series(rollout)
    events = played.journal.events("shop", rollout=rollout.id)
    found = [*map(series.add, events), series.end()]
    return [point for point in found if point is not None and point.seq > start]


def test_series__good_rollout__has_weights_rates_and_proof(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    found = points(played)
    assert [point.values["weight"] for point in found][-1] == 100.0
    assert [point.age for point in found] == sorted({point.age for point in found})
    last = found[-2].values
    assert last["log10_threshold"] == pytest.approx(1.301, abs=1e-3)
    assert last["log10_proof/errors_vs_limit"] > last["log10_threshold"]
    middle = next(point for point in found if point.values["step"] == 1.0).values
    assert middle["candidate/requests_per_second"] > 0
    assert middle["live/requests_per_second"] > 0
    assert middle["candidate/error_share"] == 0.0
    assert middle["live/p99_ms"] == 100.0
    assert "agreement" not in middle


def test_series__failing_candidate__shows_errors_and_evidence(played: Played) -> None:
    played.until(RolloutPhase.DONE, errors=10)
    worst = max(points(played), key=lambda each: each.values.get("log10_e/errors_vs_limit", -9))
    assert worst.values["candidate/error_share"] > 0.2
    assert worst.values["log10_e/errors_vs_limit"] > worst.values["log10_threshold"]


def test_series__resumed_later__has_the_same_points(played: Played) -> None:
    played.until(RolloutPhase.BAKE)
    early = points(played)[:-1]  # the last one is not complete yet
    assert early
    played.until(RolloutPhase.DONE)
    late = points(played)
    assert late[: len(early)] == early
    assert points(played, start=early[-1].seq) == late[len(early) :]


def test_series__agreement__is_over_the_whole_rollout(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    tick = played.journal.events("shop", rollout=played.controller.rollout.id)[-1]
    series = Series(played.controller.rollout)
    body = {**tick.body, "shadow": {"psi": 0.1}, "compared": [1.0, 20]}
    series.add(replace(tick, body=body))
    point = series.end()
    assert point is not None
    assert point.values["agreement"] == 0.95
    assert point.values["psi"] == 0.1
