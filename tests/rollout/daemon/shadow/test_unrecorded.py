"""A real daemon and Envoy's mirror in front of servers that record nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.client.rendering import event_line
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import Outcome
from tests.support.rollouts import Load, quick_settings, quick_spec, revision, story

pytestmark = pytest.mark.slow


def test_shadow__real_daemon_without_records__promotes_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    port = free_ports(1)[0]
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    spec = replace(quick_spec(), shadow_percent=50, shadow_seconds=0.5, shadow_wait_seconds=2.0)
    try:
        with Load(port) as load:
            rollout = deployments.promote("shop", revision("tiny:bb"), spec)
            events = list(deployments.follow("shop", rollout))
    finally:
        deployments.down("shop")
    assert load.failed == 0, load.answers
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    phases = [event for event in events if event.kind == "phase"]
    assert RolloutPhase.SHADOW in [event.body["phase"] for event in phases]
    first_step = next(event for event in phases if event.body["phase"] == RolloutPhase.SHIFT)
    said = event_line(first_step) or ""
    assert "the shadow ends without a verdict" in said, story(events)
    assert "0 compared answers" in said
