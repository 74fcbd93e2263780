"""An InferenceService of KServe: the image as a custom container that speaks V2. Pure.

KServe's two modes share an API and little else, so the mode is always written down: the fields
of one are ignored, or refused, by the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bento.containers.containerfile import HTTP_PORT, USER
from bento.manifests.plan import ManifestPlan
from bento.manifests.pod import (
    Json,
    env,
    locked_down,
    mounts,
    pod,
    probes,
    resources,
    volumes,
)
from bundle.errors import ErrorCode, MlctlError

# The name by which KServe knows the container that answers.
_CONTAINER = "kserve-container"
_NO_GRPC = {"name": "MLCTL_GRPC_PORT", "value": ""}
# No group of the pod owns the Secret's file here, and nobody else is in the container.
_FOR_ALL = 0o444


class Mode(StrEnum):
    """Knative (once Serverless) or plain Deployments (Standard, once RawDeployment)."""

    KNATIVE = "knative"
    STANDARD = "standard"

    @property
    def word(self) -> str:
        """As KServe's annotation has it."""
        return self.value.capitalize()


@dataclass(frozen=True, slots=True)
class Canary:
    """The share of the plan's image in percent, and the image that keeps the rest.

    Knative remembers what ran before, so `stable` is for the standard mode only.
    """

    percent: int
    stable: str | None = None


def files(plan: ManifestPlan, mode: Mode, canary: Canary | None = None) -> dict[str, list[Json]]:
    """One InferenceService; INVALID_INPUT for a canary that the mode does not know."""
    if canary is not None and (mode is Mode.STANDARD) != (canary.stable is not None):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a canary in the standard mode needs --stable-image, and only there",
            "With --mode knative, KServe itself knows which revision was there before.",
        )
    if mode is Mode.STANDARD:
        plan.scaling.require_waker()
    notes = {
        "serving.kserve.io/deploymentMode": mode.word,
        "mlctl.io/bento": plan.model.tag,
        "mlctl.io/digest": plan.model.digest,
        "mlctl.io/resources": plan.resources.reason,
    }
    namespace = {"namespace": plan.namespace} if plan.namespace else {}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": plan.name, **namespace, "annotations": notes},
        "spec": _knative(plan, canary) if mode is Mode.KNATIVE else _standard(plan, canary),
    }
    return {"inferenceservice.yaml": [service]}


def _knative(plan: ManifestPlan, canary: Canary | None) -> Json:
    """Knative takes no pod security, lifecycle or startup probe, and drains by itself."""
    server = _container(plan, plan.image)
    server["ports"] = [{"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    del server["startupProbe"]
    predictor = {
        **_replicas(plan),
        "annotations": {
            "serving.knative.dev/progress-deadline": f"{plan.resources.start_seconds}s"
        },
        "timeout": plan.drain_seconds,
        "containers": [server],
        "volumes": volumes(plan, _FOR_ALL),
    }
    if canary is not None:
        predictor["canaryTrafficPercent"] = canary.percent
    return {"predictor": predictor}


def _standard(plan: ManifestPlan, canary: Canary | None) -> Json:
    around = pod(plan)
    stable = plan.image if canary is None or canary.stable is None else canary.stable
    spec: Json = {
        "predictor": {
            **_replicas(plan),
            **around,
            "volumes": volumes(plan, _FOR_ALL),
            "containers": [_container(plan, stable)],
        }
    }
    if canary is not None:
        # Names are part of objects' names, and a digest alone may begin with a number.
        candidate = {
            "name": f"v{plan.model.digest[:8]}",
            "containers": [_container(plan, plan.image)],
        }
        spec["canary"] = [{"trafficPercent": canary.percent, "predictor": candidate}]
    return spec


def _container(plan: ManifestPlan, image: str) -> Json:
    """KServe sends all requests to one port, over HTTP; gRPC is off."""
    found = [each for each in env(plan) if not each["name"].startswith("MLCTL_GRPC_")]
    numbered = probes(plan)
    for probe in numbered.values():
        probe["httpGet"]["port"] = HTTP_PORT
    rights = {
        **locked_down(),
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "name": _CONTAINER,
        "image": image,
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "env": [*found, _NO_GRPC, {"name": "PROTOCOL", "value": "v2"}],
        "resources": resources(plan),
        **numbered,
        "securityContext": rights,
        "volumeMounts": mounts(plan),
    }


def _replicas(plan: ManifestPlan) -> Json:
    most = plan.scaling.most or plan.scaling.replicas
    return {"minReplicas": plan.scaling.replicas, "maxReplicas": most}
