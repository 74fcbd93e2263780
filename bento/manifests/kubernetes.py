"""The objects of a cluster: what runs, and what keeps it running. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from bento.manifests import network, scaling
from bento.manifests.plan import ManifestLayout, ManifestPlan, ManifestSlot
from bento.manifests.pod import Json, container, pod

_SINGLE = "server"


@dataclass(frozen=True, slots=True)
class Track:
    """One Deployment with all that is its own: a slot, or the only one. `live` has pods."""

    title: str
    name: str
    labels: dict[str, str]
    live: bool


def tracks(plan: ManifestPlan) -> tuple[Track, ...]:
    """Blue, which is live, and green; or one without a slot."""
    if plan.layout is ManifestLayout.SINGLE:
        return (Track(_SINGLE, plan.name, _selector(plan), live=True),)
    return tuple(
        Track(
            slot.value,
            f"{plan.name}-{slot}",
            {**_selector(plan), "mlctl.io/slot": slot.value},
            live=slot is (plan.only or ManifestSlot.BLUE),
        )
        for slot in ManifestSlot
    )


def files(plan: ManifestPlan) -> dict[str, list[Json]]:
    """The objects by the file that they belong in; each file needs other parts of a cluster.

    With `only` nothing but that slot, with pods: the way for a candidate into what is there.
    """
    found = tracks(plan)
    made: dict[str, list[Json]] = {}
    for track in found:
        if plan.only is None or track.title == plan.only:
            made |= _of_track(plan, track)
    if plan.only is None:
        made["network.yaml"] = [network.policy(plan, _selector(plan))]
        made["monitoring.yaml"] = [scaling.service_monitor(plan, _selector(plan))]
        if plan.edge.gateway is not None:
            made["gateway.yaml"] = network.routes(plan, [track.name for track in found])
    for objects in made.values():
        for each in objects:
            each["metadata"] = _metadata(plan, each["metadata"])
    return made


def _of_track(plan: ManifestPlan, track: Track) -> dict[str, list[Json]]:
    made = {
        f"{track.title}.yaml": [
            config_map(plan, track),
            deployment(plan, track),
            network.service(track.name, track.labels),
            disruption_budget(track),
        ]
    }
    if plan.scaling.most is not None:
        plan.scaling.require_waker()
        scaled = scaling.scaled_object(plan, track.name, live=track.live)
        made[f"{track.title}-scaling.yaml"] = [scaled]
    return made


def config_map(plan: ManifestPlan, track: Track) -> Json:
    """The server's settings; each slot has its own, so that a candidate changes nothing else."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": track.name, "labels": track.labels},
        "data": plan.environment,
    }


def deployment(plan: ManifestPlan, track: Track) -> Json:
    """The pods of one track; a slot that is not live has none until it is a candidate."""
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
                "annotations": {**_identity(plan), "mlctl.io/settings": _digest(plan.environment)},
            },
            "spec": _pod_spec(plan, track),
        },
    }
    if plan.scaling.most is None:
        spec["replicas"] = plan.scaling.replicas if track.live else 0
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": track.name,
            "labels": track.labels,
            "annotations": {**_identity(plan), "mlctl.io/resources": plan.resources.reason},
        },
        "spec": spec,
    }


def disruption_budget(track: Track) -> Json:
    """One pod at a time may be taken away, and a broken one always."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": track.name, "labels": track.labels},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": track.labels},
        },
    }


def _pod_spec(plan: ManifestPlan, track: Track) -> Json:
    server = {**container(plan), "envFrom": [{"configMapRef": {"name": track.name}}]}
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


def _metadata(plan: ManifestPlan, given: Json) -> Json:
    found = {"name": given["name"]}
    if plan.namespace is not None:
        found["namespace"] = plan.namespace
    return {**found, **given, "labels": {**_labels(plan), **given.get("labels", {})}}


def _selector(plan: ManifestPlan) -> dict[str, str]:
    return {"app.kubernetes.io/name": plan.name}


def _labels(plan: ManifestPlan) -> dict[str, str]:
    return {"app.kubernetes.io/name": plan.name, "app.kubernetes.io/component": "model-server"}


def _identity(plan: ManifestPlan) -> dict[str, str]:
    return {"mlctl.io/bento": plan.model.tag, "mlctl.io/digest": plan.model.digest}


def _digest(environment: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:12]
