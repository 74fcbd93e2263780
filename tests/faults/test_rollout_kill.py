"""Real daemons, killed and stopped, behind a real proxy: the traffic stays, the next one ends it.

Every single point of a rollout is tried in `test_rollout_sigkill`, on the twins.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import Outcome, Slot
from mlctl.rollout.domain.statistics.verdict import HoldReason
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.journal import paths
from tests.support.rollouts import (
    Load,
    daemon_of,
    kill_daemon,
    quick_settings,
    quick_spec,
    revision,
    story,
    wait_for_event,
)
from tests.support.wait import wait_until


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")


def wait_for_phase(rollout: int, phase: RolloutPhase) -> None:
    wait_for_event("shop", rollout, lambda event: event.body.get("phase") == phase)


@pytest.mark.slow
def test_rollout__daemon_killed_at_two_phases__goes_on(shop: str, port: int) -> None:
    with Load(port) as load:
        rollout = deployments.promote(shop, revision("tiny:bb"), quick_spec(step_seconds=0.3))
        for phase in (RolloutPhase.WARM, RolloutPhase.BAKE):
            wait_for_phase(rollout, phase)
            kill_daemon(shop)
            deployments.status()
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers


@pytest.mark.slow
def test_rollout__unwatched_for_too_long__is_rolled_back(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=60.0)
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_for_phase(rollout, RolloutPhase.SHIFT)
        kill_daemon(shop)
        old = time.time() - 60.0
        os.utime(paths.heartbeat(shop), (old, old))
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["verdict"]["gate"] == HoldReason.UNWATCHED
    assert load.failed == 0, load.answers


@pytest.mark.slow
def test_daemon__stopped__is_killed_before_another_takes_over(shop: str) -> None:
    former = daemon_of(shop)
    os.kill(former.pid, signal.SIGSTOP)
    heartbeat = paths.heartbeat(shop)
    old = time.time() - 60.0
    wait_until(lambda: _aged(heartbeat, old))
    deployments.status(shop)
    wait_until(lambda: daemon_of(shop) != former)
    (status,) = deployments.status(shop)
    assert status.running["daemon"]


@pytest.mark.slow
def test_daemon__stopped_and_continued__moves_no_traffic(shop: str, port: int) -> None:
    """It stands still while it could write; whoever takes over kills it before it can go on."""
    with Load(port) as load:
        rollout = deployments.promote(shop, revision("tiny:bb"), quick_spec(step_seconds=0.3))
        wait_for_phase(rollout, RolloutPhase.SHIFT)
        former = daemon_of(shop)
        os.kill(former.pid, signal.SIGSTOP)
        old = time.time() - 20.0  # stuck, but watched within what the settings allow
        wait_until(lambda: _aged(paths.heartbeat(shop), old))
        events = list(deployments.follow(shop, rollout))
    assert not processes.alive(former)
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    (status,) = deployments.status(shop)
    assert status.weights == {Slot.BLUE: 0, Slot.GREEN: 100}
    assert load.failed == 0, load.answers


def _aged(heartbeat: Path, moment: float) -> bool:
    """Set the heartbeat back; true once it stays there, so the daemon really stands still."""
    before = heartbeat.stat().st_mtime
    os.utime(heartbeat, (moment, moment))
    return before == moment
