"""The objects of a cluster: what runs, and what keeps it running. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from services.ship.manifests import network, scaling
from services.ship.manifests.pod import CONTAINER, Json, container, pod
from services.ship.manifests.plan import Layout, Plan

_COLOURS = ("blue", "green")


@dataclass(frozen=True, slots=True)
class Track:
    """One Deployment with its Service: a colour, or the only one. `live` gets the traffic."""

    name: str
    labels: dict[str, str]
    live: bool


def tracks(plan: Plan) -> tuple[Track, ...]:
    """Blue and green, or one without a colour."""
    if plan.layout is Layout.SINGLE:
        return (Track(plan.name, _selector(plan), live=True),)
    return tuple(
        Track(
            f"{plan.name}-{colour}",
            {**_selector(plan), "mlctl.io/colour": colour},
            live=colour == _COLOURS[0],
        )
        for colour in _COLOURS
    )


def files(plan: Plan) -> dict[str, list[Json]]:
    """The objects by the file that they belong in; each file needs other parts of a cluster."""
    found = tracks(plan)
    workload = [config_map(plan)]
    for track in found:
        workload += [deployment(plan, track), network.service(plan, track.name, track.labels)]
    workload += [disruption_budget(plan, track) for track in found]
    workload.append(network.policy(plan, _selector(plan)))
    made = {"workload.yaml": workload}
    if plan.edge.gateway is not None:
        made["gateway.yaml"] = network.routes(plan, [track.name for track in found])
    made["monitoring.yaml"] = [scaling.service_monitor(plan, _selector(plan))]
    if plan.scaling.most is not None:
        plan.scaling.require_waker()
        made["scaling.yaml"] = [
            scaling.scaled_object(plan, track.name, live=track.live) for track in found
        ]
    for objects in made.values():
        for each in objects:
            each["metadata"] = {
                **each["metadata"],
                "labels": {**each["metadata"].get("labels", {}), **_labels(plan)},
                **({"namespace": plan.namespace} if plan.namespace else {}),
            }
    return made


def config_map(plan: Plan) -> Json:
    """The server's settings."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": plan.name},
        "data": plan.environment,
    }


def deployment(plan: Plan, track: Track) -> Json:
    """The pods of one track; a colour that is not live has none until it is a candidate."""
    spec: Json = {
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": track.labels},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": {
            "metadata": {
                "labels": {**track.labels, **_labels(plan)},
                # Pods read their settings when they start: others need other pods.
                "annotations": {**_notes(plan), "mlctl.io/settings": _digest(plan.environment)},
            },
            "spec": _pod_spec(plan, track),
        },
    }
    if plan.scaling.most is None:
        spec["replicas"] = plan.scaling.replicas if track.live else 0
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": track.name, "labels": track.labels, "annotations": _notes(plan)},
        "spec": spec,
    }


def disruption_budget(plan: Plan, track: Track) -> Json:
    """One pod at a time may be taken away, and a broken one always."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": track.name},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": track.labels},
        },
    }


def _pod_spec(plan: Plan, track: Track) -> Json:
    server = {**container(plan, CONTAINER), "envFrom": [{"configMapRef": {"name": plan.name}}]}
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": track.labels},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
    return {**pod(plan), "topologySpreadConstraints": spread, "containers": [server]}


def _selector(plan: Plan) -> dict[str, str]:
    return {"app.kubernetes.io/name": plan.name}


def _labels(plan: Plan) -> dict[str, str]:
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/component": "model-server"}


def _notes(plan: Plan) -> dict[str, str]:
    return {
        "mlctl.io/bento": plan.model.tag,
        "mlctl.io/digest": plan.model.digest,
        "mlctl.io/resources": plan.resources.reason,
    }


def _digest(environment: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]
