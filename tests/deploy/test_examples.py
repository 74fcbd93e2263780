"""The example manifests: they parse, agree with each other, and call the gate correctly.

Kinds with a published schema must match it. There is no schema of Argo's and Flagger's kinds here,
so of those only the fields that mlctl relies on are checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner
from starlette.testclient import TestClient

from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.drivers.kubernetes import route as routes
from mlctl.rollout.drivers.kubernetes.meter import Scrape
from mlctl.rollout.drivers.kubernetes.scrape import NOTHING
from mlctl.rollout.gate_service.app import gate_app
from mlctl.rollout.gate_service.service import GateService
from mlctl.rollout.gate_service.sources import ServiceName, parse_sources
from mlctl.rollout.gate_service.store import SessionStore
from tests.support.clock import ManualClock
from tests.support.schemas import faults, kinds

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"


class Quiet:
    """A source without requests."""

    def scrape(self) -> Scrape:
        return Scrape(frozenset("x"), frozenset("x"), {"x": NOTHING})


def documents(name: str) -> dict[str, Any]:
    """Return the documents of one file by kind and name."""
    found = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    store = SessionStore(tmp_path / "s.db", ManualClock(1.0), limit=9, expire_seconds=9.0)
    return TestClient(gate_app(GateService({"stable": Quiet(), "canary": Quiet()}, store)))


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_examples__each_document__has_a_version_a_namespace_and_content(name: str) -> None:
    for document in documents(name).values():
        assert document["apiVersion"]
        assert document["metadata"]["namespace"] == "shop"
        assert set(document) - {"apiVersion", "kind", "metadata"} or (
            document["kind"] == "ServiceAccount"
        )


def test_examples__each_selector__matches_the_pods_of_a_workload() -> None:
    files = [documents(path.name) for path in EXAMPLES.glob("*.yaml")]
    found = [each for file in files for each in file.values()]
    workloads = [each for each in found if "template" in each.get("spec", {})]
    pods = [each["spec"]["template"]["metadata"]["labels"].items() for each in workloads]
    for workload, labels in zip(workloads, pods, strict=True):
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels
    selectors = {
        each["metadata"]["name"]: each["spec"]["selector"].items()
        for each in found
        if each["kind"] == "Service"
    }
    # The pods of these two are made by `mlctl manifests`.
    assert selectors.keys() >= {"shop-blue", "shop-green"}
    for name in selectors.keys() - {"shop-blue", "shop-green"}:
        assert any(selectors[name] <= labels for labels in pods), name


def test_examples__kinds_with_a_published_schema__match_it() -> None:
    found = [each for path in EXAMPLES.glob("*.yaml") for each in documents(path.name).values()]
    known = [each for each in found if each["kind"] in kinds()]
    assert len(known) > len(found) / 2
    for each in known:
        assert not faults(each), each["metadata"]["name"]


def test_httproute__weights_and_ports__suit_a_rollout() -> None:
    made = documents("httproute.yaml")
    route = made["HTTPRoute/shop"]
    route["metadata"]["resourceVersion"] = "1"
    target = KubernetesTarget("shop", "shop", "shop-blue", "shop-green")
    assert routes.weights_of(route, target) == {Slot.BLUE: 100, Slot.GREEN: 0}
    for service in target.services.values():
        assert made[f"Service/{service}"]["spec"]["ports"][0]["name"] == "http"


def test_rbac__role__allows_the_calls_of_the_driver() -> None:
    rules = documents("rbac.yaml")["Role/mlctl-rollout"]["rules"]
    allowed = {(rule["resources"][0], verb) for rule in rules for verb in rule["verbs"]}
    assert allowed == {
        ("httproutes", "get"),
        ("httproutes", "patch"),
        ("endpointslices", "list"),
        ("pods/proxy", "get"),
    }


def test_gate__command__is_valid() -> None:
    deployment = documents("gate.yaml")["Deployment/mlctl-gate"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    assert CliRunner().invoke(cli, [*words[1:], "--help"]).exit_code == 0
    sources = tuple(each.removeprefix("--source=") for each in container["args"])
    assert parse_sources(sources) == {
        "stable": ServiceName("shop", "shop-stable"),
        "canary": ServiceName("shop", "shop-canary"),
    }


def test_argo_rollouts__analysis__calls_the_gate(client: TestClient) -> None:
    made = documents("argo-rollouts.yaml")
    (metric,) = made["AnalysisTemplate/mlctl-gate"]["spec"]["metrics"]
    assert metric["provider"]["web"]["jsonPath"] == "{$.result}"
    assert metric["inconclusiveLimit"] == metric["count"] - 1
    words = re.findall(
        r'result == "(\w+)"', metric["successCondition"] + metric["failureCondition"]
    )
    assert words == ["success", "failure"]
    steps = made["Rollout/shop"]["spec"]["strategy"]["canary"]["steps"]
    for weight, analysis in zip(steps[::2], steps[1::2], strict=True):
        given = {each["name"]: each.get("value", "5d8c") for each in analysis["analysis"]["args"]}
        assert given["weight"] == str(weight["setWeight"])
        url = metric["provider"]["web"]["url"]
        for name, value in {"final": "false", **given}.items():
            url = url.replace("{{args." + name + "}}", value)
        answer = client.get(url.removeprefix("http://mlctl-gate.shop:8085"))
        assert answer.json()["result"] == "inconclusive", answer.text
    assert given["final"] == "true"


def test_flagger__hooks__call_the_gate(client: TestClient) -> None:
    made = documents("flagger.yaml")
    statuses = {}
    for hook in made["Canary/shop"]["spec"]["analysis"]["webhooks"]:
        path = hook["url"].removeprefix("http://mlctl-gate.shop:8085")
        assert path == f"/flagger/{hook['type']}"
        body = {"name": "shop", "namespace": "shop", "checksum": "1", "metadata": hook["metadata"]}
        statuses[hook["type"]] = client.post(path, json=body).status_code
    assert statuses == {
        "rollout": 200,
        "confirm-traffic-increase": 409,
        "confirm-promotion": 409,
        "rollback": 409,
    }


def test_flagger__query__names_existing_outcomes() -> None:
    query = documents("flagger.yaml")["MetricTemplate/mlctl-errors"]["spec"]["query"]
    (failures,) = re.findall(r'outcome=~"([\w|]+)"', query)
    assert set(failures.split("|")) <= set(ErrorCode)
