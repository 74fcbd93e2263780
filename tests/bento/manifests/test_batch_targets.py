"""Manifests of a batch outside of Kubernetes: a job definition of AWS Batch, an Airflow DAG."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bento.manifests.runner_plan import FINAL_EXIT_CODES, INTERRUPTED, RunnerPlan
from mlctl.bento.manifests.targets import RunnerTarget, runner_manifests
from mlctl.core.errors import MlctlError
from tests.bento.manifests.example_plans import IMAGE
from tests.bento.manifests.test_runners import CRON, JOB

ROLE = "arn:aws:iam::123456789012:role/scorer"
AWS = replace(JOB, job_role=ROLE, settings={"MLCTL_THREADS": "2"})
GPU = replace(AWS, resources=CRON.resources, settings={}, job_role=None)
# Parameters of KubernetesPodOperator (apache-airflow-providers-cncf-kubernetes 7.14) and of each
# operator, as its source lists them.
POD_PARAMETERS = {
    "annotations", "arguments", "container_resources", "container_security_context", "env_from",
    "env_vars", "image", "name", "namespace", "security_context", "service_account_name",
    "termination_grace_period", "volume_mounts", "volumes", "task_id", "retries", "retry_delay",
}  # fmt: skip


def job_definition(plan: RunnerPlan) -> Any:
    (text,) = runner_manifests(plan, RunnerTarget.AWS_BATCH).values()
    return json.loads(text)


def pod(plan: RunnerPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a DAG file with recorders in place of Airflow; return what the DAG and its pod get."""
    (text,) = runner_manifests(plan, RunnerTarget.AIRFLOW).values()
    operator, dag = MagicMock(), MagicMock()
    modules: dict[str, dict[str, Any]] = {
        "airflow": {"DAG": dag},
        "airflow.providers": {},
        "airflow.providers.cncf": {},
        "airflow.providers.cncf.kubernetes": {},
        "airflow.providers.cncf.kubernetes.operators": {},
        "airflow.providers.cncf.kubernetes.operators.pod": {"KubernetesPodOperator": operator},
        "kubernetes": {},
        "kubernetes.client": {"models": Models()},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, "dag.py", "exec"), {})
    return dict(dag.call_args.kwargs), dict(operator.call_args.kwargs)


class Models:
    """Stands for kubernetes.client.models: each class becomes its keyword arguments."""

    def __getattr__(self, name: str) -> Any:
        return lambda **given: {"kind": name, **given}


@pytest.mark.parametrize("plan", [AWS, GPU], ids=["cpu", "gpu"])
def test_job_definition__every_plan__is_accepted_by_the_service_model(plan: RunnerPlan) -> None:
    session = botocore.session.get_session()
    shape = session.get_service_model("batch").operation_model("RegisterJobDefinition").input_shape
    assert not ParamValidator().validate(job_definition(plan), shape).has_errors()
    wrong = {**job_definition(plan), "image": "x"}
    assert ParamValidator().validate(wrong, shape).has_errors(), "unknown fields are found"


def test_job_definition__container__has_the_rights_and_resources_of_the_plan() -> None:
    container = job_definition(AWS)["containerProperties"]
    assert container["command"] == ["batch", *AWS.arguments]
    assert container["jobRoleArn"] == ROLE
    assert container["readonlyRootFilesystem"] is True
    assert container["environment"] == [{"name": "MLCTL_THREADS", "value": "2"}]
    needs = {each["type"]: each["value"] for each in container["resourceRequirements"]}
    assert needs == {"VCPU": "4", "MEMORY": str(AWS.resources.memory_mib)}
    gpu = job_definition(GPU)["containerProperties"]
    assert {"type": "GPU", "value": "1"} in gpu["resourceRequirements"]
    assert "jobRoleArn" not in gpu


def test_job_definition__exit_codes__only_those_worth_it_are_retried() -> None:
    retry = job_definition(AWS)["retryStrategy"]
    rules = retry["evaluateOnExit"]
    assert len(rules) <= 5, "AWS Batch takes no more"
    assert rules[-1] == {"onReason": "*", "action": "EXIT"}
    patterns = [each["onExitCode"] for each in rules if "onExitCode" in each]

    def is_retried(code: int) -> bool:
        return any(
            str(code).startswith(each[:-1]) if each.endswith("*") else str(code) == each
            for each in patterns
        )

    assert all(map(is_retried, (9, 12, 13, INTERRUPTED, 137)))
    assert not any(map(is_retried, FINAL_EXIT_CODES))


@given(st.text(st.characters(codec="utf-8")))
def test_batch_targets__hostile_argument__stays_a_value(text: str) -> None:
    hostile = replace(JOB, arguments=("--in", f"s3:{text}"))
    assert job_definition(hostile)["containerProperties"]["command"][-1] == f"s3:{text}"
    (source,) = runner_manifests(hostile, RunnerTarget.AIRFLOW).values()
    (arguments,) = [
        each.value
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.keyword) and each.arg == "arguments"
    ]
    assert ast.literal_eval(arguments) == ["batch", "--in", f"s3:{text}"]


@pytest.mark.parametrize("plan", [JOB, CRON], ids=["job", "cron"])
def test_airflow__every_plan__calls_the_operator_with_its_parameters(
    plan: RunnerPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, given = pod(plan, monkeypatch)
    assert (dag["dag_id"], dag["schedule"]) == (plan.name, plan.schedule)
    assert (dag["catchup"], dag["max_active_runs"]) == (False, 1)
    assert given.keys() <= POD_PARAMETERS
    assert (given["image"], given["arguments"]) == (IMAGE, ["batch", *plan.arguments])
    assert given["container_security_context"]["read_only_root_filesystem"] is True
    assert given["security_context"]["run_as_non_root"] is True
    assert given["container_resources"]["limits"]["memory"] == plan.resources.memory
    if plan is CRON:
        assert given["namespace"] == "prod"
        assert given["service_account_name"] == "scorer"
        assert given["env_from"][0]["secret_ref"]["name"] == "keys"
        assert given["container_resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_job_role__no_arn__is_rejected() -> None:
    with pytest.raises(MlctlError, match="not the ARN of a role"):
        replace(JOB, job_role="scorer")
