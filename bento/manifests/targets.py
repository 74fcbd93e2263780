"""Manifests of a plan: which files a target needs, and their text."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mlctl.bento.containers.containerfile import GRPC_PORT, HTTP_PORT, USER
from mlctl.bento.manifests.plan import (
    METRICS_KEY,
    TOKEN_FOLDER,
    TOKEN_KEY,
    ManifestLayout,
    ManifestPlan,
    ManifestSlot,
)
from mlctl.bento.manifests.resources import SCRATCH_MIB
from mlctl.bento.manifests.runner_plan import (
    DATA_FOLDER,
    FINAL_EXIT_CODES,
    INTERRUPTED,
    RunnerPlan,
)
from mlctl.bento.manifests.yaml_values import yaml_value
from mlctl.bento.templates import environment
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic

_FOLDER = Path(__file__).with_name("templates")
_TEMPLATES = environment(_FOLDER, yaml_value)
_JSON = environment(_FOLDER, json.dumps)
_PYTHON = environment(_FOLDER, repr)
_STARTUP_PERIOD_SECONDS = 2
# From the removal of a pod until every Gateway and kube-proxy has noticed it.
_PRE_STOP_SECONDS = 5
# The mean of the waiting rows is taken over this window: a shorter one follows each burst.
_QUEUE_WINDOW = "1m"
# How GKE and AKS keep other pods off spot nodes; EKS and Karpenter do not.
_SPOT_TAINTS = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
_SPOT_LABELS = (
    *_SPOT_TAINTS,
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)


class ManifestTarget(StrEnum):
    """The platform that the manifests of a server are for."""

    KUBERNETES = "kubernetes"
    KSERVE = "kserve"
    COMPOSE = "compose"
    BENTOCLOUD = "bentocloud"


class RunnerTarget(StrEnum):
    """The platform that the manifest of a runner is for; a stream runs on Kubernetes alone."""

    KUBERNETES = "kubernetes"
    AWS_BATCH = "aws-batch"
    AIRFLOW = "airflow"


# AWS Batch takes 5 rules, so the codes that are worth another run are patterns: 9, 12, and 13 with
# 130 (interrupted) and 137 (killed).
_RETRIED_PATTERNS = ("9", "12", "13*")


class KServeMode(StrEnum):
    """Knative (earlier: Serverless) or plain Deployments (Standard, earlier: RawDeployment)."""

    KNATIVE = "knative"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Canary:
    """The share of requests, in percent, for the plan's image; `stable_image` serves the rest.

    Knative remembers the previous revision, so `stable_image` is for the standard mode only.
    """

    percent: int
    stable_image: str | None = None


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of one target alone: KServe's mode and canary, BentoCloud's instance type."""

    mode: KServeMode = KServeMode.STANDARD
    canary: Canary | None = None
    instance_type: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One Deployment with everything of its own: a slot, or the only one. `live` has pods."""

    name: str
    slot: str | None
    live: bool


def manifests(
    plan: ManifestPlan, target: ManifestTarget, options: TargetOptions | None = None
) -> dict[str, str]:
    """Return the text of each file by its name; the same plan always gives the same bytes.

    INVALID_INPUT for what the target cannot do.
    """
    options = options or TargetOptions()
    if target is not ManifestTarget.BENTOCLOUD and not plan.image:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{target} runs an image, and --image is missing",
            f"Build one with `mlctl containerize {plan.model.tag}`, push it, and name it as the "
            "registry does: --image REGISTRY/NAME@sha256:DIGEST.",
        )
    match target:
        case ManifestTarget.KUBERNETES:
            return dict(_kubernetes(plan.behind_gateway))
        case ManifestTarget.KSERVE:
            return {"inferenceservice.yaml": _kserve(plan, options)}
        case ManifestTarget.COMPOSE:
            return {"compose.yaml": _render("compose", plan)}
        case ManifestTarget.BENTOCLOUD:
            instance_type = options.instance_type
            return {"bentocloud.yaml": _render("bentocloud", plan, instance_type=instance_type)}


def runner_manifests(
    plan: RunnerPlan, target: RunnerTarget = RunnerTarget.KUBERNETES
) -> dict[str, str]:
    """Return the text of a runner's file by its name; the same plan gives the same bytes."""
    if target is RunnerTarget.AWS_BATCH:
        text = _JSON.get_template("job-definition.json.j2").render(
            plan=plan, user=USER, scratch_mib=SCRATCH_MIB, retried_exit_codes=_RETRIED_PATTERNS
        )
        return {"job-definition.json": text}
    if target is RunnerTarget.AIRFLOW:
        text = _PYTHON.get_template("dag.py.j2").render(plan=plan, user=USER)
        return {f"{plan.name.replace('-', '_')}_dag.py": text}
    text = _TEMPLATES.get_template(f"{plan.runner}.yaml.j2").render(
        plan=plan,
        user=USER,
        data_folder=DATA_FOLDER,
        final_exit_codes=FINAL_EXIT_CODES,
        interrupted=INTERRUPTED,
        spot_taints=_SPOT_TAINTS,
        spot_labels=_SPOT_LABELS,
    )
    return {f"{plan.runner}.yaml": text}


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write each file into `folder`; INVALID_INPUT if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomic(folder / name, text.encode())
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{folder} cannot be written: {error.strerror}"
        ) from error


def workloads(plan: ManifestPlan) -> tuple[Workload, ...]:
    """Return blue, which is live, and green; or the only Deployment of the single layout."""
    if plan.layout is ManifestLayout.SINGLE:
        return (Workload(plan.name, None, live=True),)
    return tuple(
        Workload(f"{plan.name}-{slot}", slot.value, slot is (plan.slot or ManifestSlot.BLUE))
        for slot in ManifestSlot
    )


def _kubernetes(plan: ManifestPlan) -> Iterator[tuple[str, str]]:
    """Yield files by the part of a cluster that they need; with `plan.slot` that slot's alone."""
    if plan.scaling.max_replicas is not None:
        plan.scaling.require_wake_query()
    settings = hashlib.sha256(json.dumps(plan.environment).encode()).hexdigest()[:12]
    found = workloads(plan)
    for workload in found:
        if plan.slot not in (None, workload.slot):
            continue
        title = workload.slot or "server"
        yield (
            f"{title}.yaml",
            _render("workload", plan, workload=workload, settings_digest=settings),
        )
        if plan.scaling.max_replicas is not None:
            query = _queue_query(plan, workload.name)
            text = _render("scaling", plan, workload=workload, queue_query=query)
            yield f"{title}-scaling.yaml", text
    if plan.slot is None:
        yield "network.yaml", _render("network", plan)
        yield "monitoring.yaml", _render("monitoring", plan)
        if plan.access.gateway is not None:
            yield "gateway.yaml", _render("gateway", plan, workloads=found)


def _kserve(plan: ManifestPlan, options: TargetOptions) -> str:
    is_standard = options.mode is KServeMode.STANDARD
    canary = options.canary
    if canary is not None and is_standard != (canary.stable_image is not None):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a canary needs --stable-image in the standard mode, and only there",
            "With --mode knative, KServe remembers the previous revision.",
        )
    if is_standard:
        plan.scaling.require_wake_query()
    return _render("kserve", plan, knative=not is_standard, canary=canary)


def _queue_query(plan: ManifestPlan, service: str) -> str:
    """Return the PromQL query of the rows that wait in all pods of a Service."""
    labels = {"service": service, **({"namespace": plan.namespace} if plan.namespace else {})}
    chosen = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"sum(avg_over_time(mlctl_queue_rows{{{chosen}}}[{_QUEUE_WINDOW}]))"


def _render(template: str, plan: ManifestPlan, **values: object) -> str:
    return _TEMPLATES.get_template(f"{template}.yaml.j2").render(
        plan=plan,
        http_port=HTTP_PORT,
        grpc_port=GRPC_PORT,
        user=USER,
        token_folder=TOKEN_FOLDER,
        token_key=TOKEN_KEY,
        metrics_key=METRICS_KEY,
        pre_stop_seconds=_PRE_STOP_SECONDS,
        startup_period=_STARTUP_PERIOD_SECONDS,
        startup_attempts=math.ceil(plan.resources.start_seconds / _STARTUP_PERIOD_SECONDS),
        **values,
    )
