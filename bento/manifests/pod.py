"""The pod of a server: its container, probes, rights, and how it ends. Pure."""

from __future__ import annotations

import math
from typing import Any

from bento.containers.containerfile import GRPC_PORT, HTTP_PORT, USER
from bento.manifests.plan import TOKEN_FOLDER, TOKEN_KEY, ManifestPlan

Json = dict[str, Any]

_CONTAINER = "server"
_GPU = "nvidia.com/gpu"
_STARTUP_PERIOD = 2
# From the first SIGTERM or removal until every Gateway and kube-proxy has heard of it.
_PRE_STOP_SECONDS = 5
_SCRATCH = "scratch"
# Of the Secret's file, which belongs to root: the pod's group reads it.
_FOR_GROUP = 0o440
_TOKEN = "token"  # noqa: S105 - a volume


def container(plan: ManifestPlan) -> Json:
    """The server's container, without its environment."""
    return {
        "name": _CONTAINER,
        "image": plan.image,
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT},
            {"name": "grpc", "containerPort": GRPC_PORT},
        ],
        "resources": resources(plan),
        **probes(plan),
        "lifecycle": {"preStop": {"sleep": {"seconds": _PRE_STOP_SECONDS}}},
        "securityContext": locked_down(),
        "volumeMounts": mounts(plan),
    }


def pod(plan: ManifestPlan) -> Json:
    """What is around the container: rights, the end, the only folder that can be written."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": _PRE_STOP_SECONDS + plan.drain_seconds,
        "volumes": volumes(plan, _FOR_GROUP),
    }


def locked_down() -> Json:
    """No rights, and nothing to write but what is mounted."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def resources(plan: ManifestPlan) -> Json:
    """Memory is bounded, CPU is not: a limit there would halt a server in the middle of a batch."""
    needs = plan.resources
    requests = {"cpu": needs.cpu, "memory": needs.memory}
    limits = {"memory": needs.memory}
    if needs.gpus:
        limits[_GPU] = str(needs.gpus)
    return {"requests": requests, "limits": limits}


def probes(plan: ManifestPlan) -> Json:
    """A server listens only when it is warm; until then nothing but the startup probe counts."""
    tries = math.ceil(plan.resources.start_seconds / _STARTUP_PERIOD)
    return {
        "startupProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "periodSeconds": _STARTUP_PERIOD,
            "timeoutSeconds": 2,
            "failureThreshold": tries,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def env(plan: ManifestPlan) -> list[Json]:
    """The server's settings as a container's environment."""
    return [{"name": name, "value": value} for name, value in plan.environment.items()]


def mounts(plan: ManifestPlan) -> list[Json]:
    """Where the volumes are in the container."""
    found: list[Json] = [{"name": _SCRATCH, "mountPath": "/tmp"}]  # noqa: S108 - in the pod
    if plan.token_secret is not None:
        found.append({"name": _TOKEN, "mountPath": TOKEN_FOLDER, "readOnly": True})
    return found


def volumes(plan: ManifestPlan, token_mode: int) -> list[Json]:
    """What is mounted: a folder in memory, and the Secret with the tokens."""
    scratch = {"sizeLimit": f"{plan.resources.scratch_mib}Mi"}
    if not plan.resources.gpus:
        # The workers' counters meet in files there: in memory they cost nothing to write.
        scratch["medium"] = "Memory"
    found: list[Json] = [{"name": _SCRATCH, "emptyDir": scratch}]
    if plan.token_secret is not None:
        secret = {
            "secretName": plan.token_secret,
            "defaultMode": token_mode,
            "items": [{"key": TOKEN_KEY, "path": TOKEN_KEY}],
        }
        found.append({"name": _TOKEN, "secret": secret})
    return found
