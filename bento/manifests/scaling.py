"""The objects that watch a server and change how many there are. Pure."""

from __future__ import annotations

from bento.manifests.plan import METRICS_KEY, ManifestPlan
from bento.manifests.pod import Json

# How long the mean of the waiting rows is over: shorter ones follow each burst.
_WINDOW = "1m"
_COOLDOWN_SECONDS = 300
# For a trigger that only wakes: it asks for one replica, and never for more.
_NEVER = 1_000_000_000
PAUSED = "autoscaling.keda.sh/paused-replicas"


def service_monitor(plan: ManifestPlan, selector: dict[str, str]) -> Json:
    """Prometheus asks each pod; what it keeps has the labels namespace, service and pod."""
    endpoint: Json = {"port": "http", "path": "/metrics", "interval": "15s"}
    if plan.token_secret is not None:
        credentials = {"name": plan.token_secret, "key": METRICS_KEY}
        endpoint["authorization"] = {"type": "Bearer", "credentials": credentials}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": plan.name},
        "spec": {"selector": {"matchLabels": selector}, "endpoints": [endpoint]},
    }


def scaled_object(plan: ManifestPlan, name: str, *, live: bool) -> Json:
    """As many replicas as it takes for no more than one full batch to wait before each.

    If Prometheus cannot be asked, as many as there are at least, or one. What is not live has
    none until its annotation is taken away.
    """
    found = plan.scaling
    wake = [] if found.wake is None else [_trigger(plan, found.wake, _NEVER)]
    queue = _trigger(plan, waiting_rows(plan, name), plan.model.max_rows)
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, **({} if live else {"annotations": {PAUSED: "0"}})},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": found.replicas,
            "maxReplicaCount": found.most,
            "cooldownPeriod": _COOLDOWN_SECONDS,
            "fallback": {"failureThreshold": 3, "replicas": max(found.replicas, 1)},
            "triggers": [queue, *wake],
        },
    }


def waiting_rows(plan: ManifestPlan, service: str) -> str:
    """The query of the rows that wait in all pods of a Service."""
    labels = {"service": service, **({"namespace": plan.namespace} if plan.namespace else {})}
    chosen = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"sum(avg_over_time(mlctl_queue_rows{{{chosen}}}[{_WINDOW}]))"


def _trigger(plan: ManifestPlan, query: str, threshold: int) -> Json:
    metadata = {
        "serverAddress": plan.scaling.prometheus,
        "query": query,
        "threshold": str(threshold),
        "activationThreshold": "0",
    }
    return {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}
