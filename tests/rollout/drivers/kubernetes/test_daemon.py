"""The real daemon, as `mlctl up` starts it, on a cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client import deployments
from mlctl.rollout.client import scaling as resizing
from mlctl.rollout.client.process_table import listing
from mlctl.rollout.domain.interfaces import TrafficSplit
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.process_ref import DAEMON
from mlctl.rollout.domain.spec import DeploymentSettings, Slot
from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
from mlctl.rollout.drivers.kubernetes.route import Claim
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import ENDED
from tests.rollout.drivers.kubernetes.conftest import BLUE_DIGEST, GREEN_DIGEST
from tests.rollout.drivers.kubernetes.test_rollout import revision
from tests.support.kube import FakeKube
from tests.support.rollouts import quick_spec, story

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]


def settings(target: KubernetesTarget) -> DeploymentSettings:
    return DeploymentSettings(
        tick_seconds=0.1,
        ready_seconds=60.0,
        drain_seconds=0.5,
        champion=("/bin/true",),
        kubernetes=target,
    )


@contextmanager
def traffic(state: FakeKube) -> Iterator[None]:
    """Requests by the route's weights, until left."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.02):
            for service, weight in state.weights().items():
                state.pods[service][0].serve(weight // 10)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def kill_daemon(name: str) -> None:
    with Journal(paths.journal()) as journal:
        daemon, _ = journal.processes(name)[DAEMON]
    os.kill(daemon.pid, signal.SIGKILL)


def test_kubernetes__up_promote_and_down__moves_the_weights(
    state: FakeKube, target: KubernetesTarget
) -> None:
    deployments.up("shop", revision(BLUE_DIGEST), 8000, settings=settings(target))
    try:
        with traffic(state):
            sticky = replace(quick_spec(), sticky=True)
            with pytest.raises(MlctlError, match="not sticky"):
                deployments.promote("shop", revision(GREEN_DIGEST), sticky)
            rollout = deployments.promote("shop", revision(GREEN_DIGEST), quick_spec())
            events = []
            for event in deployments.follow("shop", rollout):
                if event.kind == "phase" and event.body["phase"] == RolloutPhase.BAKE:
                    kill_daemon("shop")
                events.append(event)
        assert events[-1].kind == ENDED
        assert "resumed" in {event.kind for event in events}
        assert events[-1].body["outcome"] == "promoted", story(events)
        (status,) = deployments.status("shop")
        assert status.weights == {Slot.BLUE: 0, Slot.GREEN: 100}
        assert status.healthy == {Slot.BLUE: True, Slot.GREEN: True}
        assert status.running == {"daemon": True}
        with pytest.raises(MlctlError, match="runs in a cluster"):
            resizing.scale("shop", 3)
        ((_, rows),) = listing("shop")
        assert [row.role for row in rows] == ["daemon"]
        route = state.objects.pop(("httproutes", "web"))
        (status,) = deployments.status("shop")
        assert status.weights is None
        state.objects["httproutes", "web"] = route
    finally:
        deployments.down("shop")
    assert state.weights() == {"shop-blue": 0, "shop-green": 100}


def test_up__route_does_not_fit__is_rejected_with_the_reason(
    state: FakeKube, target: KubernetesTarget
) -> None:
    wrong = replace(target, green="no-such")
    with pytest.raises(MlctlError, match="no rule has both Services") as caught:
        deployments.up("shop", revision(BLUE_DIGEST), 8000, settings=settings(wrong))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    with KubernetesDataPlane(target, Claim("another", 1)) as other:
        other.apply(TrafficSplit({Slot.BLUE: 100}))
    with pytest.raises(MlctlError, match="belongs to another deployment"):
        deployments.up("shop", revision(BLUE_DIGEST), 8000, settings=settings(target))
    state.down = 403
    with pytest.raises(MlctlError, match="answers 403") as caught:
        deployments.up("shop", revision(BLUE_DIGEST), 8000, settings=settings(target))
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_up__blue_serves_another_digest__is_rejected(
    state: FakeKube, target: KubernetesTarget
) -> None:
    with pytest.raises(MlctlError, match="pod blue-0 serves aaaa") as caught:
        deployments.up("shop", revision(GREEN_DIGEST), 8000, settings=settings(target))
    assert caught.value.code is ErrorCode.NOT_READY
    assert deployments.status() == ()
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}
