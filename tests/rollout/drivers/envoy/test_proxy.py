"""What only Envoy does; what every proxy must do is in test_data_plane_contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable, TrafficSplit
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from mlctl.rollout.drivers.envoy import config
from mlctl.rollout.drivers.envoy import proxy as envoy
from mlctl.rollout.drivers.envoy.proxy import EnvoyFiles
from mlctl.rollout.drivers.envoy.routes import route_table
from tests.support.planes import Stage, stage

pytestmark = pytest.mark.slow
BLUE, GREEN = Slot
ALL_BLUE, ALL_GREEN = TrafficSplit({BLUE: 100}), TrafficSplit({GREEN: 100})


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def test_apply__envoy_rejects_the_routes__raises_and_keeps_the_split(
    running: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.staff(BLUE)
    table = route_table(ALL_GREEN, DeploymentSettings())
    hosts = table["resources"][0]["virtual_hosts"]
    hosts.append({**hosts[0], "name": "another for the same domain"})

    monkeypatch.setattr(envoy, "route_table", lambda _traffic, _timeouts: table)
    with pytest.raises(DataPlaneRejected):
        running.data_plane.apply(ALL_GREEN)
    assert running.data_plane.weights() == ALL_BLUE.weights
    assert httpx.post(running.url, trust_env=False).status_code == httpx.codes.OK
    monkeypatch.undo()
    running.data_plane.apply(ALL_GREEN)
    assert running.data_plane.weights() == ALL_GREEN.weights


def test_counts__streamed_answers__have_no_time(
    running: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.staff(BLUE, 1, "?delay=1.5")
    monkeypatch.setattr(
        envoy,
        "route_table",
        lambda traffic, _settings: route_table(traffic, DeploymentSettings(request_seconds=0.5)),
    )
    running.data_plane.apply(
        TrafficSplit({BLUE: 100}, sticky=True)
    )  # a file that is not in force yet
    for path, status in (("", 504), ("_stream", 200)):
        answer = httpx.post(running.url + path, trust_env=False, timeout=30)
        assert answer.status_code == status, answer.text
    method = "/inference.GRPCInferenceService/Model{}Infer"
    target = f"127.0.0.1:{running.ports.listen}"
    with grpc.insecure_channel(target) as channel:  # type: ignore[no-untyped-call]
        assert channel.unary_unary(method.format("Stream"))(b"pieces", timeout=30) == b"pieces"
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            channel.unary_unary(method.format(""))(b"", timeout=30)


def test_local_reply__no_server_is_there__has_the_form_of_the_servers_errors(
    running: Stage,
) -> None:
    answer = httpx.post(f"{running.url}/v2/models/m/infer", json={}, trust_env=False)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == config.local_replies()[503]
    head = {"x-long": "x" * 60_000}
    answer = httpx.post(running.url, headers=head, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (431, "payload_too_large")
    call = {"content-type": "application/grpc", "te": "trailers"}
    answer = httpx.post(running.url, headers=call, trust_env=False)
    assert (answer.headers["grpc-status"], "{" in answer.headers["grpc-message"]) == ("14", False)


def test_local_reply__retry_of_a_large_request__is_503_and_unavailable(running: Stage) -> None:
    """Envoy's own status is 507: it keeps no more than 1 MiB for a retry."""
    (replica,) = running.staff(BLUE)
    (closed,) = free_ports(1)
    running.data_plane.connect(BLUE, (Endpoint(replica.endpoint.http, closed),))
    body = b"[" * (5 << 20)
    call = {"content-type": "application/grpc", "te": "trailers"}
    for _ in range(10):
        answer = httpx.post(running.url, content=body, trust_env=False)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == config.local_replies()[503]
        answer = httpx.post(running.url, content=body, headers=call, trust_env=False)
        assert answer.headers["grpc-status"] == "14"


def test_data_plane__envoy_is_not_running__is_unavailable(tmp_path: Path) -> None:
    listen, admin = free_ports(2)
    files = EnvoyFiles(tmp_path, Ports(listen, admin))
    files.prepare(BLUE)
    with files.data_plane() as data_plane:
        with pytest.raises(DataPlaneUnavailable):
            data_plane.read()
        with pytest.raises(DataPlaneUnavailable):
            data_plane.apply(ALL_GREEN)
    assert not files.route(ALL_GREEN), "the weights must hold once Envoy is back"


def test_infer_requests__reach_the_server_over_http2__share_connections(running: Stage) -> None:
    running.staff(BLUE)
    with httpx.Client(trust_env=False) as client:
        assert client.post(running.url + "?query").status_code == httpx.codes.OK
        for path in ("_stream", "/unknown"):
            client.post(running.url + path)
        assert client.get(running.url).status_code == httpx.codes.OK
        assert client.post(running.url, headers={"x": "a" * 50_000}).status_code == httpx.codes.OK
        large = client.post(running.url, headers={"x": "a" * 57_500})
        assert large.status_code == httpx.codes.REQUEST_HEADER_FIELDS_TOO_LARGE
        assert client.post(running.url).status_code == httpx.codes.OK
    plane: Any = running.data_plane
    names = "upstream_(rq_total|cx_http2_total|cx_destroy)$"
    stats = plane._query("/stats", filter=rf"cluster\.blue-http[12]\.{names}", format="json")
    found = {
        entry["name"].removeprefix("cluster.blue-"): entry["value"] for entry in stats["stats"]
    }
    assert (found["http1.upstream_rq_total"], found["http2.upstream_rq_total"]) == (3, 3)
    # One more at most, which Envoy opens for a second stream before it knows the first one's limit.
    assert 1 <= found["http2.upstream_cx_http2_total"] <= 2
    assert found["http2.upstream_cx_destroy"] == 0
