"""Manifests of the runners: a batch Job and CronJob, a stream's Deployment with its scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bento.manifests.plan import NetworkAccess, Scaling
from mlctl.bento.manifests.resources import runner_resources
from mlctl.bento.manifests.runner_plan import (
    FINAL_EXIT_CODES,
    LagTrigger,
    Runner,
    RunnerPlan,
    batch_arguments,
    check_locations,
    lag_trigger,
    with_metrics,
)
from mlctl.bento.manifests.targets import runner_manifests
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from tests.bento.manifests.example_plans import IMAGE, PLAN
from tests.support.schemas import faults, mutants

JOB = RunnerPlan(
    name="shop-batch",
    model=PLAN.model,
    image=IMAGE,
    resources=runner_resources(10 << 20, 4, None, gpu=False),
    arguments=("--in", "s3://data/rows/", "--out", "s3://data/scores/$(JOB_NAME)/"),
)
CRON = replace(
    JOB,
    namespace="prod",
    settings={"MLCTL_THREADS": "2"},
    resources=runner_resources(10 << 20, 4, 8192, gpu=True),
    secret="keys",
    claim="rows",
    account="scorer",
    spot=True,
    schedule="0 2 * * *",
)
OPTIONS: dict[str, Any] = {
    "source": "kafka://a:9092,b:9092#orders",
    "target": "kafka://a:9092#scores",
    "group": "mlctl",
    "start": "earliest",
    "max_batch": 512,
    "max_messages": None,
    "until_empty": False,
    "metrics_port": None,
}
STREAM = replace(
    JOB,
    name="shop-stream",
    runner=Runner.STREAM,
    scaling=Scaling(0, 8),
    lag=lag_trigger(OPTIONS),
    trigger_auth="kafka",
)
PLANS = pytest.mark.parametrize(
    "plan",
    [
        JOB,
        CRON,
        STREAM,
        with_metrics(replace(STREAM, lag=None, scaling=Scaling(3)), OPTIONS),
    ],
    ids=["job", "cron", "stream", "fixed"],
)


def made(plan: RunnerPlan) -> dict[str, Any]:
    (text,) = runner_manifests(plan).values()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod_of(document: Any) -> Any:
    spec = document["spec"]
    spec = spec["jobTemplate"]["spec"] if document["kind"] == "CronJob" else spec
    return spec["template"]["spec"]


@PLANS
def test_runner__every_plan__matches_the_published_schemas(plan: RunnerPlan) -> None:
    for kind, document in made(plan).items():
        assert not faults(document), kind
        passed = [what for what, mutant in mutants(document) if not faults(mutant)]
        assert not passed, kind


@PLANS
def test_runner__pod__has_no_privileges_and_its_own_selector(plan: RunnerPlan) -> None:
    found = made(plan)
    (workload,) = found.keys() - {"NetworkPolicy", "ScaledObject"}
    pod = pod_of(found[workload])
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["args"] == [plan.runner.value, *plan.arguments]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    # A Service of the server selects pods by this label alone.
    selector = found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": plan.name}
    assert plan.name != PLAN.name


def test_job__exit_codes__end_it_or_are_tried_again() -> None:
    spec = made(JOB)["Job"]["spec"]
    disrupted, interrupted, final = spec["podFailurePolicy"]["rules"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert interrupted["onExitCodes"]["values"] == [130]
    assert (disrupted["action"], interrupted["action"]) == ("Ignore", "Ignore")
    codes = {code: ERROR_TABLE[code].exit_code for code in ErrorCode}
    assert final["action"] == "FailJob"
    assert final["onExitCodes"]["values"] == list(FINAL_EXIT_CODES)
    for code in (ErrorCode.INVALID_INPUT, ErrorCode.JOB_CHANGED, ErrorCode.TOO_MANY_BAD_ROWS):
        assert codes[code] in FINAL_EXIT_CODES
    for code in (ErrorCode.SOURCE_UNAVAILABLE, ErrorCode.DISK_FULL, ErrorCode.INTERNAL):
        assert codes[code] not in FINAL_EXIT_CODES
    assert made(JOB)["Job"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_job__same_plan__same_name_and_other_arguments_another() -> None:
    name = made(JOB)["Job"]["metadata"]["name"]
    assert name == made(replace(JOB))["Job"]["metadata"]["name"]
    other = replace(JOB, arguments=(*JOB.arguments, "--keep", "id"))
    assert name != made(other)["Job"]["metadata"]["name"]
    assert len(replace(JOB, name="a" * 46).job_name) <= 63 - len("-abcde")


def test_cron_job__spot__tolerates_and_prefers_spot_nodes() -> None:
    spec = made(CRON)["CronJob"]["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("0 2 * * *", "Etc/UTC")
    assert spec["concurrencyPolicy"] == "Forbid"
    pod = pod_of(made(CRON)["CronJob"])
    assert {each["key"] for each in pod["tolerations"]} == {
        "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority",
    }  # fmt: skip
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"memory": "8192Mi", "nvidia.com/gpu": "1"}
    assert pod["serviceAccountName"] == "scorer"
    assert "tolerations" not in pod_of(made(JOB)["Job"])


def test_stream__kafka__scales_with_the_lag_of_its_group() -> None:
    found = made(STREAM)
    assert "replicas" not in found["Deployment"]["spec"]
    spec = found["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 8)
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "kafka"
    assert trigger["authenticationRef"] == {"name": "kafka"}
    assert trigger["metadata"] == {
        "bootstrapServers": "a:9092,b:9092",
        "consumerGroup": "mlctl",
        "topic": "orders",
        "lagThreshold": "512",
        "activationLagThreshold": "0",
        "offsetResetPolicy": "earliest",
    }


@pytest.mark.parametrize("port", [None, 9100])
def test_stream__metrics__can_be_scraped_by_the_permitted_clients(port: int | None) -> None:
    access = NetworkAccess(allow=("monitoring", "10.0.0.0/8"))
    found = made(with_metrics(replace(STREAM, access=access), {**OPTIONS, "metrics_port": port}))
    port = port or 9464
    template = found["Deployment"]["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    (container,) = template["spec"]["containers"]
    assert container["args"][-4:] == ["--metrics-host", "0.0.0.0", "--metrics-port", str(port)]
    assert container["ports"] == [{"name": "metrics", "containerPort": port}]
    (rule,) = found["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
    ]
    assert "ingress" not in made(JOB)["NetworkPolicy"]["spec"]


def test_lag_trigger__redis__names_the_server_without_its_user() -> None:
    options = {**OPTIONS, "source": "rediss://me@redis:6380/2#orders"}
    found = lag_trigger(options)
    assert found == LagTrigger(
        "redis-streams",
        {
            "address": "redis:6380",
            "databaseIndex": "2",
            "enableTLS": "true",
            "stream": "orders",
            "consumerGroup": "mlctl",
            "lagCount": "512",
            "activationLagCount": "0",
        },
    )
    with pytest.raises(MlctlError, match="KEDA cannot read the lag of sqlite"):
        lag_trigger({**OPTIONS, "source": "sqlite:///data/events.db#orders"})


@pytest.mark.parametrize("path", ["rows.parquet", "/data/rows", "file:///data/rows", "-"])
def test_check_locations__local_path__needs_the_claim(path: str) -> None:
    options = {**OPTIONS, "source": path}
    with pytest.raises(MlctlError, match="a pod has no such file"):
        check_locations(Runner.BATCH, options, None)
    if "/data/" in path:
        check_locations(Runner.BATCH, options, "rows")


def test_check_locations__stream_that_ends__is_rejected() -> None:
    with pytest.raises(MlctlError, match="starts a run that ended again"):
        check_locations(Runner.STREAM, {**OPTIONS, "until_empty": True}, None)


def test_batch_arguments__threads__are_the_requested_cpus() -> None:
    options = {"threads": None, "executor": "local"}
    assert batch_arguments(("--in", "x"), options, 4)[-2:] == ("--threads", "4")
    assert batch_arguments(("--in", "x"), {**options, "threads": 2}, 4) == ("--in", "x")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "tonight"}, "not a schedule"),
        ({"name": "a" * 47}, "limit 46"),
        ({"secret": "Keys"}, "not a valid name"),
        ({"arguments": ("--in", "postgresql://me:hunter2@db/rows")}, "has a password"),
        ({"image": ""}, "needs the image"),
    ],
)
def test_runner_plan__what_no_cluster_accepts__is_rejected(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(MlctlError, match=message):
        replace(JOB, **wrong)


@given(st.text(st.characters(codec="utf-8")))
def test_runner__hostile_argument__stays_a_value(text: str) -> None:
    hostile = replace(JOB, arguments=("--in", f"s3:{text}"))
    (container,) = pod_of(made(hostile)["Job"])["containers"]
    assert container["args"] == ["batch", "--in", f"s3:{text}"]
