"""The data plane and meter on a real Envoy with two fake Bentos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rollout import envoy_config, processes
from rollout.counts import Totals, difference
from rollout.envoy import EnvoyFiles, EnvoyPlane, envoy_command
from rollout.launcher import LocalLauncher, free_ports
from rollout.model import Colour, Ports
from rollout.ports import PlaneRejected, PlaneUnavailable, Probe, Served
from tests.support.rollouts import quick_settings, revision
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
BLUE, GREEN = Colour
ALL_BLUE, ALL_GREEN = {BLUE: 100, GREEN: 0}, {BLUE: 0, GREEN: 100}


@dataclass
class Rig:
    plane: EnvoyPlane
    ports: Ports
    served: dict[Colour, Served]
    client: httpx.Client

    def send(self, n: int) -> Counter[str]:
        """`n` requests; how often each digest answered."""
        url = f"http://127.0.0.1:{self.ports.listen}/v2/models/tiny/infer"
        answers = [self.client.post(url, content=b"{}") for _ in range(n)]
        return Counter(answer.json()["model_version"][:2] for answer in answers)

    def connect(self, colour: Colour) -> None:
        self.plane.connect(colour, self.served[colour].endpoint)
        wait_until(lambda: self.plane.read().healthy[colour])

    def counted(self, n: int) -> dict[Colour, Totals]:
        before = self.plane.read()
        self.send(n)
        parts: dict[Colour, Totals] = {}

        def complete() -> bool:
            found = difference(before, self.plane.read())
            assert found is not None
            parts.update(found)
            return sum(part.requests for part in parts.values()) == n

        wait_until(complete)
        return parts


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("envoy")
    (directory / "logs").mkdir()
    with pytest.MonkeyPatch.context() as patch, httpx.Client(trust_env=False) as client:
        patch.setenv("MLCTL_HOME", str(directory / "home"))
        launcher = LocalLauncher(directory / "logs", quick_settings())
        tags = {BLUE: "tiny:aa", GREEN: "tiny:bb?delay=0.06&fail=0.5"}
        served = {colour: launcher.start(colour, revision(tags[colour])) for colour in Colour}
        for each in served.values():
            wait_until(lambda each=each: launcher.probe(each) is Probe.READY)  # type: ignore[misc]
        ports = two_ports()
        files = EnvoyFiles(directory, ports)
        files.prepare(BLUE)
        role = str(directory)
        processes.spawn(role, envoy_command(files.bootstrap), directory / "logs" / "envoy.log")
        with EnvoyPlane(files, ports) as plane:
            wait_until(lambda: _answers(plane))
            yield Rig(plane, ports, served, client)
        launcher.close()
        for each in served.values():
            launcher.stop(each, force=True)
        processes.end_strays(role)


@pytest.fixture
def ready(rig: Rig) -> Rig:
    rig.plane.apply(ALL_BLUE)
    rig.connect(BLUE)
    rig.plane.connect(GREEN, None)
    return rig


def two_ports() -> Ports:
    listen, admin = free_ports(2)
    return Ports(listen, admin)


def _answers(plane: EnvoyPlane) -> bool:
    try:
        return plane.weights() is not None
    except PlaneUnavailable:
        return False


def test_applied_weights_hold_for_the_very_next_request(ready: Rig) -> None:
    ready.connect(GREEN)
    for _ in range(5):
        ready.plane.apply(ALL_GREEN)
        assert ready.plane.weights() == ALL_GREEN
        assert ready.send(3) == {"bb": 3}
        ready.plane.apply(ALL_BLUE)
        assert ready.send(3) == {"aa": 3}


def test_a_share_is_a_share(ready: Rig) -> None:
    ready.connect(GREEN)
    ready.plane.apply({BLUE: 80, GREEN: 20})
    assert 15 <= ready.send(200)["bb"] <= 70


def test_requests_errors_and_latencies_are_counted_exactly(ready: Rig) -> None:
    ready.connect(GREEN)
    ready.plane.apply(ALL_GREEN)
    green = ready.counted(40)[GREEN]
    edges = envoy_config.LATENCY_EDGES_MS
    assert (green.requests, green.timed) == (40, 40)
    assert 8 <= green.errors <= 32
    assert green.slower_than(59.0, edges) == 40
    assert green.slower_than(5000.0, edges) == 0


def test_a_colour_without_a_process_is_covered_by_the_other(ready: Rig) -> None:
    ready.plane.apply(ALL_GREEN)
    assert ready.send(5) == {"aa": 5}
    assert not ready.plane.read().healthy[GREEN]


def test_a_refused_file_is_told(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    table = envoy_config.route_table(ALL_GREEN)
    hosts = table["resources"][0]["virtual_hosts"]
    hosts.append({**hosts[0], "name": "another for the same domain"})

    monkeypatch.setattr(envoy_config, "route_table", lambda _weights: table)
    with pytest.raises(PlaneRejected):
        ready.plane.apply(ALL_GREEN)
    assert ready.send(1) == {"aa": 1}
    monkeypatch.undo()
    ready.plane.apply(ALL_BLUE)


def test_without_envoy_nothing_is_known(tmp_path: Path) -> None:
    ports = two_ports()
    files = EnvoyFiles(tmp_path, ports)
    files.prepare(BLUE)
    with EnvoyPlane(files, ports) as plane:
        with pytest.raises(PlaneUnavailable):
            plane.read()
        with pytest.raises(PlaneUnavailable):
            plane.apply(ALL_GREEN)
    assert not files.route(ALL_GREEN), "the weights must hold once Envoy is back"
