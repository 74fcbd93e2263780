from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlctl.core.ports import free_ports
from mlctl.rollout.daemon.reporting.telemetry import MetricsServer, RolloutCollector
from mlctl.rollout.daemon.reporting.webhooks import sink_of
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import DeploymentSettings, Ports, Slot
from mlctl.rollout.domain.traffic.counts import Totals
from mlctl.rollout.domain.traffic.split import SplitRecord
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Delivery
from tests.support.clock import ManualClock
from tests.support.played import Played
from tests.support.rollouts import revision

Labels = frozenset[tuple[str, str]]
ROOT = Path(__file__).parents[4]


def collected(collector: RolloutCollector) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name.removeprefix("mlctl_rollout_"), frozenset(sample.labels.items())): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def of(**labels: str) -> Labels:
    return frozenset({"deployment": "shop", **labels}.items())


@pytest.fixture
def collector(played: Played, path: Path, tmp_path: Path) -> RolloutCollector:
    heartbeat = tmp_path / "heartbeat"
    heartbeat.touch()
    assert played.controller.progress.phase is RolloutPhase.PENDING
    return RolloutCollector("shop", path, heartbeat)


def test_metrics__split__weights_and_counts_of_both_slots(journal: Journal, path: Path) -> None:
    journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
    journal.split("shop", revision("tiny:bb"), 20, sticky=False)
    within = {Slot.BLUE: Totals(300, 0, 300, (300,)), Slot.GREEN: Totals(200, 2, 200, (200,))}
    record = SplitRecord().add(within, Slot.BLUE, (10.0,))
    journal.put_split_record("shop", record, journal.take_over("shop"))
    found = collected(RolloutCollector("shop", path, path))
    assert found["weight", of(slot="green")] == 20.0
    assert found["mlctl_split_requests_total", of(slot="blue")] == 300.0
    assert found["mlctl_split_errors_total", of(slot="green")] == 2.0
    assert found["mlctl_split_p99_ms", of(slot="green")] == 10.0


def test_metrics__rollout_under_way__weight_phase_and_evidence(
    played: Played, collector: RolloutCollector
) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick(2)
    found = collected(collector)
    assert found["weight", of(slot="green")] == 10.0
    assert found["weight", of(slot="blue")] == 90.0
    assert found["phase", of(phase="shift")] == 1.0
    assert sum(value for (name, _), value in found.items() if name == "phase") == 1.0
    assert found["threshold", of()] == pytest.approx(20.0)
    assert 0 < found["e_value", of(gate="errors_vs_limit")] < 1
    assert found["proof_value", of(gate="errors_vs_limit")] > 1
    assert found["last_tick_seconds", of()] >= 0
    assert found["requests_total", of(slot="green")] == 40.0
    assert found["requests_total", of(slot="blue")] == 360.0


def test_metrics__several_scrapes__counters_rise(
    played: Played, collector: RolloutCollector
) -> None:
    seen = []
    for errors in (0, 0, 2):
        played.until(RolloutPhase.SHIFT)
        played.tick(errors=errors)
        found = collected(collector)
        green = of(slot="green")
        seen.append((found["requests_total", green], found["errors_total", green]))
    assert seen == [(20.0, 0.0), (40.0, 0.0), (60.0, 2.0)]


def test_metrics__rollout_ended__no_evidence(played: Played, collector: RolloutCollector) -> None:
    played.until(RolloutPhase.DONE)
    found = collected(collector)
    assert found["phase", of(phase="idle")] == 1.0
    assert found["weight", of(slot="green")] == 100.0
    assert found["ended_total", of(outcome="promoted")] == 1.0
    assert {name for name, _ in found} & {"e_value", "threshold", "proof_value"} == set()


def test_metrics__failing_webhook__failures_by_host(
    played: Played, collector: RolloutCollector
) -> None:
    url = "https://hooks.example/secret"
    settings = DeploymentSettings(webhooks=(url,))
    played.journal.resize("shop", lambda _: settings, "test")
    played.journal.put_delivery("shop", sink_of(url), Delivery(1, 4, "HTTP 500"))
    assert collected(collector)["webhook_failures", of(host="hooks.example")] == 4.0


def test_dashboard__its_queries__exist_in_the_exporter(
    played: Played, collector: RolloutCollector
) -> None:
    played.until(RolloutPhase.SHIFT)
    played.tick()
    exported = {name: set(dict(labels)) for name, labels in collected(collector)}
    text = (ROOT / "deploy/grafana/mlctl.json").read_text()
    panels = [panel for panel in json.loads(text)["panels"] if "mlctl_rollout_" in str(panel)]
    assert len(panels) > 2
    for panel in panels:
        for target in panel["targets"]:
            (name,) = re.findall(r"mlctl_rollout_(\w+)", target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= exported[name]


@pytest.fixture
def server(
    collector: RolloutCollector, path: Path, tmp_path: Path, clock: ManualClock
) -> Iterator[tuple[MetricsServer, int]]:
    assert collector is not None
    (port,) = free_ports(1)
    settings = DeploymentSettings(metrics_port=port)
    with MetricsServer("shop", settings, path, tmp_path / "heartbeat", clock) as made:
        yield made, port


def scrape(port: int) -> set[str]:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    return {family.name for family in text_string_to_metric_families(text)}


@pytest.mark.slow
def test_metrics_server__port__on_loopback(server: tuple[MetricsServer, int]) -> None:
    metrics, port = server
    metrics.poll()
    metrics.poll()
    assert {"mlctl_rollout_weight", "mlctl_rollout_requests"} <= scrape(port)


@pytest.mark.slow
def test_metrics_server__port_in_use__retried(
    server: tuple[MetricsServer, int], clock: ManualClock, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics, port = server
    with socket.create_server(("127.0.0.1", port)):
        metrics.poll()
        metrics.poll()
    assert capfd.readouterr().err.count("no metrics on port") == 1
    clock.advance(60)
    metrics.poll()
    assert "mlctl_rollout_weight" in scrape(port)
