from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from mlctl.bento.manifests.plan import (
    ManifestLayout,
    ManifestPlan,
    ManifestSlot,
    NetworkAccess,
    Scaling,
)
from mlctl.bento.manifests.targets import ManifestTarget, manifests
from mlctl.core.errors import MlctlError
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget as Rollout
from mlctl.rollout.domain.spec import Slot as Side
from mlctl.rollout.drivers.kubernetes import route as routes
from mlctl.rollout.drivers.kubernetes.route import Claim
from tests.bento.manifests.example_plans import FULL, IMAGE, PLAN, documents
from tests.support.schemas import faults, mutants
from tests.support.serving import Server

SINGLE = replace(
    PLAN,
    layout=ManifestLayout.SINGLE,
    access=NetworkAccess("public", ("shop.example.com",), "grpc.shop.example.com"),
)
CANDIDATE = replace(FULL, slot=ManifestSlot.GREEN)


def made(plan: ManifestPlan) -> dict[str, Any]:
    return documents(plan, ManifestTarget.KUBERNETES)


def container_of(deployment: Any) -> Any:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize(
    "plan", [PLAN, FULL, SINGLE, CANDIDATE], ids=["plain", "full", "single", "candidate"]
)
def test_kubernetes__every_kind_of_plan__matches_the_published_schemas(plan: ManifestPlan) -> None:
    for name, document in made(plan).items():
        assert not faults(document), name


def test_kubernetes__one_wrong_field_or_value__violates_the_schemas() -> None:
    documents_by_name = {**made(FULL), "GRPCRoute": made(SINGLE)["GRPCRoute/shop-grpc"]}
    found = {document["kind"]: document for document in documents_by_name.values()}
    assert len(found) == 9
    for kind, document in found.items():
        passed = [what for what, mutant in mutants(document) if not faults(mutant)]
        assert not passed, kind


def test_kubernetes__same_plan_twice__gives_the_same_bytes() -> None:
    assert manifests(FULL, ManifestTarget.KUBERNETES) == manifests(
        replace(FULL), ManifestTarget.KUBERNETES
    )


def test_route__weights_moved_by_promote__move_http_and_grpc() -> None:
    found = made(FULL)
    route = found["HTTPRoute/shop"]
    route["metadata"]["resourceVersion"] = "1"
    target = Rollout("prod", "shop", "shop-blue", "shop-green")
    assert routes.weights_of(route, target) == {Side.BLUE: 100, Side.GREEN: 0}
    patch = routes.patched(route, target, {Side.BLUE: 75, Side.GREEN: 25}, Claim("shop-1", 1))
    assert patch is not None
    for rule in patch["spec"]["rules"]:
        assert [each["weight"] for each in rule["backendRefs"]] == [75, 25]
        for each in rule["backendRefs"]:
            ports = {port["port"] for port in found[f"Service/{each['name']}"]["spec"]["ports"]}
            assert each["port"] in ports
    assert found["Service/shop-blue"]["spec"]["ports"][0]["name"] == "http"


def test_slot__candidate_alone__leaves_out_what_serves() -> None:
    assert sorted(made(CANDIDATE)) == [
        "ConfigMap/shop-green",
        "Deployment/shop-green",
        "PodDisruptionBudget/shop-green",
        "ScaledObject/shop-green",
        "Service/shop-green",
    ]
    fixed = replace(CANDIDATE, scaling=Scaling(3))
    assert made(fixed)["Deployment/shop-green"]["spec"]["replicas"] == 3
    assert "annotations" not in made(CANDIDATE)["ScaledObject/shop-green"]["metadata"]


def test_slot__not_live__has_no_pods() -> None:
    found = made(PLAN)
    assert found["Deployment/shop-blue"]["spec"]["replicas"] == 2
    assert found["Deployment/shop-green"]["spec"]["replicas"] == 0
    scaled = made(FULL)
    assert "replicas" not in scaled["Deployment/shop-blue"]["spec"]
    paused = scaled["ScaledObject/shop-green"]["metadata"]["annotations"]
    assert paused == {"autoscaling.keda.sh/paused-replicas": "0"}


def test_selectors__two_slots__match_the_pods_of_one() -> None:
    found = made(FULL)
    labels = {
        name: found[f"Deployment/shop-{name}"]["spec"]["template"]["metadata"]["labels"]
        for name in ManifestSlot
    }
    for name, other in (
        (ManifestSlot.BLUE, ManifestSlot.GREEN),
        (ManifestSlot.GREEN, ManifestSlot.BLUE),
    ):
        for chosen in (
            found[f"Deployment/shop-{name}"]["spec"]["selector"]["matchLabels"],
            found[f"Service/shop-{name}"]["spec"]["selector"],
            found[f"PodDisruptionBudget/shop-{name}"]["spec"]["selector"]["matchLabels"],
        ):
            assert chosen.items() <= labels[name].items()
            assert not chosen.items() <= labels[other].items()
        everyone = found["NetworkPolicy/shop"]["spec"]["podSelector"]["matchLabels"]
        assert everyone.items() <= labels[name].items()
        service = found[f"Service/shop-{name}"]["metadata"]["labels"]
        monitored = found["ServiceMonitor/shop"]["spec"]["selector"]["matchLabels"]
        assert monitored.items() <= service.items()


def test_pod__container__has_no_privileges() -> None:
    deployment = made(FULL)["Deployment/shop-blue"]
    server, pod = container_of(deployment), deployment["spec"]["template"]["spec"]
    assert server["image"] == IMAGE
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "cpu" not in server["resources"]["limits"]
    scratch, _ = pod["volumes"]
    assert "medium" not in scratch["emptyDir"]  # engines of TensorRT are large
    mounted = {each["name"] for each in server["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}


def test_pod__long_deadline__extends_the_grace_period() -> None:
    plan = replace(PLAN, settings={"MLCTL_DEADLINE_MS": "120000.5"})
    pod = made(plan)["Deployment/shop-blue"]["spec"]["template"]["spec"]
    sleeps = container_of(made(plan)["Deployment/shop-blue"])["lifecycle"]["preStop"]["sleep"]
    assert pod["terminationGracePeriodSeconds"] == sleeps["seconds"] + 121 + 10


def test_pod__other_settings__change_the_pod_template() -> None:
    def template(plan: ManifestPlan) -> Any:
        return made(plan)["Deployment/shop-blue"]["spec"]["template"]

    assert template(PLAN) == template(replace(PLAN, scaling=Scaling(7)))
    assert template(PLAN) != template(replace(PLAN, settings={"MLCTL_THREADS": "4"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "1"),
        ({"slot": ManifestSlot.GREEN}, "1"),  # a candidate that is added to a route
        ({"layout": ManifestLayout.SINGLE, "access": NetworkAccess("public")}, "1"),
        ({"layout": ManifestLayout.SINGLE}, None),
        ({"settings": {"MLCTL_PROXIED": "0"}}, "0"),
    ],
)
def test_settings__a_gateway_in_front__says_that_connections_carry_many_clients(
    changes: dict[str, Any], expected: str | None
) -> None:
    """Else the cancelled calls of one client would end the connection of all."""
    plan = replace(PLAN, **changes)
    found = made(plan)
    maps = [each for key, each in found.items() if key.startswith("ConfigMap/")]
    assert maps
    assert {each["data"].get("MLCTL_PROXIED") for each in maps} == {expected}


def test_network_policy__sources_named__admits_only_those() -> None:
    spec = made(FULL)["NetworkPolicy/shop"]["spec"]
    (rule,) = spec["ingress"]
    named = [
        each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for each in rule["from"]
        if "namespaceSelector" in each
    ]
    assert named == ["infra", "monitoring"]
    assert {"ipBlock": {"cidr": "10.0.0.0/8"}} in rule["from"]
    assert spec["egress"] == [{}]  # the collector of its settings may be anywhere
    assert made(PLAN)["NetworkPolicy/shop"]["spec"]["egress"] == []


def test_scaling__to_zero__needs_a_wake_query() -> None:
    with pytest.raises(MlctlError, match="would never start again"):
        made(replace(PLAN, scaling=Scaling(0, 4)))
    queue, wake = made(FULL)["ScaledObject/shop-blue"]["spec"]["triggers"]
    assert queue["metadata"]["threshold"] == "32"
    assert 'namespace="prod",service="shop-blue"' in queue["metadata"]["query"]
    assert wake["metadata"]["query"] == "sum(rate(gateway_requests[1m]))"
    assert int(wake["metadata"]["threshold"]) > 10**6


@pytest.mark.slow
def test_probes_and_metrics__real_server__are_answered(server: Server) -> None:
    deployment = made(FULL)["Deployment/shop-blue"]
    probes = [value for name, value in container_of(deployment).items() if name.endswith("Probe")]
    assert len(probes) == 3
    for probe in probes:
        assert get(server, probe["httpGet"]["path"])[0] == 200
    (endpoint,) = made(FULL)["ServiceMonitor/shop"]["spec"]["endpoints"]
    status, text = get(server, endpoint["path"])
    assert status == 200
    query = made(FULL)["ScaledObject/shop-blue"]["spec"]["triggers"][0]["metadata"]["query"]
    (metric,) = re.findall(r"mlctl_\w+", query)
    assert re.search(rf"^{metric}{{", text, re.MULTILINE)


def get(server: Server, path: str) -> tuple[int, str]:
    answer = httpx.get(f"{server.url}{path}", timeout=5)
    return answer.status_code, answer.text
