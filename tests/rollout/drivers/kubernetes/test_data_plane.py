"""The data_plane against a real API over HTTP that enforces versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable, TrafficSplit
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import difference
from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
from mlctl.rollout.drivers.kubernetes.gateway import Gateway
from mlctl.rollout.drivers.kubernetes.route import EPOCH, HOLDER, Claim
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import StaleEpochError
from tests.support.kube import FakeKube, route

CLAIM = Claim("shop-1", 5)


def share(green: int) -> TrafficSplit:
    return TrafficSplit({Slot.BLUE: 100 - green, Slot.GREEN: green})


@pytest.fixture
def data_plane(target: KubernetesTarget) -> Iterator[KubernetesDataPlane]:
    with KubernetesDataPlane(target, CLAIM, accept_seconds=0.3) as opened:
        yield opened


def test_apply__route_with_other_rules__changes_only_our_weights(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    before = state.route()
    data_plane.apply(share(25))
    after = state.route()
    assert state.weights() == {"shop-blue": 75, "shop-green": 25}
    assert data_plane.weights() == {Slot.BLUE: 75, Slot.GREEN: 25}
    assert after["spec"]["rules"][1] == before["spec"]["rules"][1]
    assert after["spec"]["parentRefs"] == before["spec"]["parentRefs"]
    marks = {"team": "search", EPOCH: "5", HOLDER: "shop-1"}
    assert after["metadata"]["annotations"] == marks


def test_apply__foreign_backend__keeps_its_weight(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    state.put("httproutes", route({"name": "old-stack", "port": 80, "weight": 40}))
    data_plane.apply(share(10))
    assert state.weights() == {"shop-blue": 90, "shop-green": 10, "old-stack": 40}


def test_apply__foreign_share_would_change__is_rejected(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    other = {"name": "old-stack", "port": 80, "weight": 4}
    state.put("httproutes", route(other, weights=(6, 0)))
    with pytest.raises(DataPlaneRejected, match="sum to 100"):
        data_plane.apply(share(10))
    assert state.weights() == {"shop-blue": 6, "shop-green": 0, "old-stack": 4}


def test_apply__same_split_twice__writes_once(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    data_plane.apply(share(10))
    data_plane.apply(share(10))
    assert len(state.writes) == 1


def test_apply__concurrent_writes__are_kept(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    """Somebody adds a rule between our read and our write, three times in a row."""
    left = 3

    def interfere() -> None:
        nonlocal left
        if left:
            left -= 1
            changed = state.route()
            added = {"backendRefs": [{"name": f"added-{left}", "port": 80}]}
            changed["spec"]["rules"].append(added)
            state.put("httproutes", changed)

    state.before_write = interfere
    data_plane.apply(share(10))
    names = [rule["backendRefs"][0]["name"] for rule in state.route()["spec"]["rules"]]
    assert names == ["shop-blue", "shop-green", "added-2", "added-1", "added-0"]
    assert state.weights() == {"shop-blue": 90, "shop-green": 10}


def test_apply__endless_conflicts__is_unavailable_and_changes_nothing(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    state.before_write = lambda: state.put("httproutes", state.route())  # type: ignore[assignment]
    with pytest.raises(DataPlaneUnavailable, match="others keep changing"):
        data_plane.apply(share(10))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}


def test_apply__older_epoch__is_stale(state: FakeKube, target: KubernetesTarget) -> None:
    with (
        KubernetesDataPlane(target, Claim("shop-1", 6)) as newer,
        KubernetesDataPlane(target, CLAIM) as older,
    ):
        newer.apply(share(0))
        with pytest.raises(StaleEpochError):
            older.apply(share(50))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}


def test_apply__takeover_between_read_and_write__is_stale(
    state: FakeKube, target: KubernetesTarget, data_plane: KubernetesDataPlane
) -> None:
    """The holder stands still with its patch in hand; the next one writes; the first goes on."""
    with KubernetesDataPlane(target, Claim("shop-1", 6)) as newer:

        def take_over() -> None:
            state.before_write = None
            newer.apply(share(0))

        state.before_write = take_over
        with pytest.raises(StaleEpochError):
            data_plane.apply(share(50))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}
    assert state.route()["metadata"]["annotations"][EPOCH] == "6"


def test_apply__route_of_another_deployment__is_rejected(
    state: FakeKube, target: KubernetesTarget
) -> None:
    with KubernetesDataPlane(target, Claim("other", 900)) as other:
        other.apply(share(0))
    with (
        KubernetesDataPlane(target, CLAIM) as data_plane,
        pytest.raises(DataPlaneRejected, match="another deployment"),
    ):
        data_plane.apply(share(50))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}


def test_apply__no_ready_pod__is_unavailable(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    for pod in state.pods["shop-green"]:
        pod.ready = False
    with pytest.raises(DataPlaneUnavailable, match="no ready pod"):
        data_plane.apply(share(10))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}
    assert not data_plane.read().healthy[Slot.GREEN]


def test_apply__several_rules__move_together_or_not_at_all(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    ours = route(weights=(100, 0))
    ours["spec"]["rules"].append(route(weights=(0, 100))["spec"]["rules"][0])
    state.put("httproutes", ours)
    for pod in state.pods["shop-blue"]:
        pod.ready = False
    with pytest.raises(DataPlaneUnavailable, match="shop-blue has no ready pod"):
        data_plane.apply(share(0))
    assert not state.writes
    for pod in state.pods["shop-blue"]:
        pod.ready = True
    data_plane.apply(share(0))
    rules = state.route()["spec"]["rules"]
    assert rules[0]["backendRefs"] == rules[-1]["backendRefs"]


def test_apply__back_to_live_without_ready_pods__is_written(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    data_plane.apply(share(50))
    for pod in (*state.pods["shop-blue"], *state.pods["shop-green"]):
        pod.ready = False
    data_plane.apply(share(0))
    assert state.weights() == {"shop-blue": 100, "shop-green": 0}


def test_apply__gateway_rejects_the_route__raises(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    state.accepts = False
    with pytest.raises(DataPlaneRejected, match="UnsupportedValue"):
        data_plane.apply(share(10))


def test_apply__gateway_status_is_old__is_unavailable_until_seen(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    state.accepts = None  # the status stays that of the version before
    with pytest.raises(DataPlaneUnavailable, match="not accepted the weights yet"):
        data_plane.apply(share(10))
    state.accepts = True
    state.put("httproutes", state.route())
    data_plane.apply(share(10))


@pytest.mark.parametrize("code", [401, 403, 429, 500, 502, 503])
def test_data_plane__api_server_fails__is_unavailable(
    state: FakeKube, data_plane: KubernetesDataPlane, code: int
) -> None:
    state.down = code
    with pytest.raises(DataPlaneUnavailable):
        data_plane.apply(share(10))
    with pytest.raises(DataPlaneUnavailable):
        data_plane.read()


@pytest.mark.usefixtures("home")
def test_data_plane__waits_for_the_cluster__keeps_the_heartbeat(
    state: FakeKube, target: KubernetesTarget
) -> None:
    state.down = 503
    directory, heartbeat = paths.directory("shop"), paths.heartbeat("shop")
    for epoch in (None, 5):
        assert not heartbeat.exists()
        with (
            Gateway(directory, target, epoch).data_plane() as data_plane,
            pytest.raises(DataPlaneUnavailable),
        ):
            data_plane.weights()
    assert heartbeat.exists()


def test_apply__route_was_deleted__is_rejected(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    state.objects.clear()
    with pytest.raises(DataPlaneRejected, match="does not exist"):
        data_plane.apply(share(10))


def test_apply__mirror__is_rejected(data_plane: KubernetesDataPlane) -> None:
    with pytest.raises(DataPlaneRejected, match="copies"):
        data_plane.apply(TrafficSplit({Slot.BLUE: 100}, mirror=10, mirror_to=Slot.GREEN))


def test_read__several_pods__are_summed(state: FakeKube, data_plane: KubernetesDataPlane) -> None:
    first, second = state.pods["shop-green"]
    first.serve(50)  # before anybody looked: belongs to no rollout
    before = data_plane.read()
    first.serve(10)
    second.serve(5, seconds=0.2)
    second.serve(3, outcome="internal")
    second.serve(2, outcome="queue_full")
    second.serve(4, outcome="invalid_input")
    second.serve(1, outcome="gone")
    parts = difference(before, data_plane.read())
    assert parts is not None
    green = parts[Slot.GREEN]
    assert (green.requests, green.errors, green.client_errors, green.abandoned) == (24, 5, 4, 1)
    assert green.timed == 15
    assert green.slower_than(100.0, SERVED_EDGES_MS) == 5
    assert green.slower_than(200.0, SERVED_EDGES_MS) == 0


def test_read__restarted_pod__counts_no_negative_window(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    first, second = state.pods["shop-green"]
    data_plane.read()
    first.serve(40)
    second.serve(7)
    before = data_plane.read()
    first.restart()
    first.serve(5)
    second.serve(1)
    parts = difference(before, data_plane.read())
    assert parts is not None
    assert parts[Slot.GREEN].requests == 6


def test_read__removed_pod__subtracts_nothing(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    data_plane.read()
    state.pods["shop-green"][0].serve(40)
    before = data_plane.read()
    del state.pods["shop-green"][0]
    parts = difference(before, data_plane.read())
    assert parts is not None
    assert parts[Slot.GREEN].requests == 0


def test_read__silent_pods__are_unhealthy_or_unavailable(
    state: FakeKube, data_plane: KubernetesDataPlane
) -> None:
    for pod in state.pods["shop-green"]:
        pod.answers = False
    assert data_plane.read().healthy == {Slot.BLUE: True, Slot.GREEN: False}
    for pod in state.pods["shop-blue"]:
        pod.answers = False
    with pytest.raises(DataPlaneUnavailable, match="no server reports"):
        data_plane.read()
