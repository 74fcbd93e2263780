from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from mlctl.rollout.domain.interfaces import TrafficSplit
from mlctl.rollout.domain.spec import Endpoint, Ports, Slot
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS, latency_edge
from mlctl.rollout.drivers.envoy import config
from mlctl.rollout.drivers.envoy.proxy import EnvoyFiles


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["plain", 'it\'s a "folder": here', "\U0001f680 \u00e9"])
def test_envoy_files__checked_by_envoy__are_valid(tmp_path: Path, folder: str) -> None:
    directory = tmp_path / folder
    directory.mkdir()
    files = EnvoyFiles(directory, Ports(1, 2))
    files.prepare(Slot.BLUE)
    files.connect(Slot.BLUE, (Endpoint(3, 4),))
    done = subprocess.run(
        [*files.command(), "--mode", "validate"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


def test_envoy_files__prepared_again__keep_weights_and_endpoints(tmp_path: Path) -> None:
    files = EnvoyFiles(tmp_path, Ports(1, 2))
    files.prepare(Slot.BLUE)
    assert files.route(TrafficSplit({Slot.BLUE: 75, Slot.GREEN: 25}))
    files.connect(Slot.GREEN, (Endpoint(3, 4),))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    files.prepare(Slot.BLUE)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert not files.route(TrafficSplit({Slot.BLUE: 75, Slot.GREEN: 25}))
    files.reset()
    files.prepare(Slot.BLUE)
    assert files.route(TrafficSplit({Slot.BLUE: 75, Slot.GREEN: 25}))


def test_bootstrap__public_host__admin_port_is_on_loopback(tmp_path: Path) -> None:
    document = yaml.safe_load(config.bootstrap(Ports(1, 2, host="0.0.0.0"), tmp_path, tmp_path))
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    json.dumps(document, allow_nan=False)
    assert len(document["static_resources"]["clusters"]) == 28


def test_bootstrap__one_connection__may_take_a_small_part_of_the_proxy(tmp_path: Path) -> None:
    document = yaml.safe_load(config.bootstrap(Ports(1, 2), tmp_path, tmp_path))
    (listener,) = document["static_resources"]["listeners"]
    assert listener["per_connection_buffer_limit_bytes"] <= 8 << 10
    assert listener["max_connections_to_accept_per_socket_event"] == 1
    (chain,) = listener["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    assert manager["http2_protocol_options"]["max_concurrent_streams"] <= 128
    (layer,) = document["layered_runtime"]["layers"]
    assert layer["static_layer"]["http.max_requests_per_io_cycle"] == 1
    assert layer["static_layer"]["overload.premature_reset_total_stream_count"] < 500


def test_bootstrap__connection_to_a_server__is_not_ended_by_its_clients_frames(
    tmp_path: Path,
) -> None:
    """30 clients that send one byte in each frame fill 100,000 in one round of Envoy's loop."""
    text = config.bootstrap(Ports(1, 2), tmp_path, tmp_path)
    found = [
        options["explicit_http_config"]["http2_protocol_options"]
        for cluster in yaml.safe_load(text)["static_resources"]["clusters"]
        for options in cluster.get("typed_extension_protocol_options", {}).values()
        if "http2_protocol_options" in options["explicit_http_config"]
    ]
    assert found
    for options in found:
        assert options["max_outbound_frames"] >= 1 << 30
        assert options["max_outbound_control_frames"] >= 1 << 30


@pytest.mark.parametrize(("workers", "streams"), [(1, 128), (2, 1)])
def test_bootstrap__several_workers__share_the_connections(
    tmp_path: Path, workers: int, streams: int
) -> None:
    text = config.bootstrap(Ports(1, 2), tmp_path, tmp_path, workers=workers)
    found = [
        options["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"]
        for cluster in yaml.safe_load(text)["static_resources"]["clusters"]
        for options in cluster.get("typed_extension_protocol_options", {}).values()
        if "http2_protocol_options" in options["explicit_http_config"]
    ]
    assert found == [streams] * 6


def test_endpoint_table__slot_without_a_process__is_empty() -> None:
    table = config.endpoint_table(Slot.GREEN, "http2", ())
    assert table["resources"][0]["endpoints"] == []


def test_endpoint_table__each_protocol__checks_health_on_the_http_port() -> None:
    for protocol, port in (("http1", 3), ("http2", 4)):
        table = config.endpoint_table(Slot.BLUE, protocol, (Endpoint(3, 4),))
        endpoint = table["resources"][0]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        assert endpoint["address"]["socket_address"]["port_value"] == port
        assert endpoint["health_check_config"] == {"port_value": 3}


@pytest.mark.parametrize(
    ("limit", "edge"),
    [(50.0, 50.0), (50.5, 51.0), (101.0, 110.0), (0.2, 1.0), (59_999.0, 60_000.0)],
)
def test_latency_edge__limit_between_edges__is_rounded_up(limit: float, edge: float) -> None:
    assert latency_edge(limit) == edge


def test_latency_edges__all__rise_and_have_two_digits() -> None:
    edges = LATENCY_EDGES_MS
    assert list(edges) == sorted(set(edges))
    assert all(float(f"{edge:.1e}") == edge for edge in edges)
