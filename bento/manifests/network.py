"""The objects that lead requests to pods, and keep others away. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bento.containers.containerfile import GRPC_PORT, HTTP_PORT
from bento.manifests.plan import ManifestLayout, ManifestPlan
from bento.manifests.pod import Json

_GATEWAY_API = "gateway.networking.k8s.io"
_GRPC_TYPES = ("application/grpc", "application/grpc+proto")
_NAMESPACE = "kubernetes.io/metadata.name"
_LIVE, _IDLE = 100, 0


def service(name: str, selector: dict[str, str]) -> Json:
    """Both ports of the pods; `mlctl promote` finds HTTP by its name."""
    ports = [
        {"name": "http", "port": HTTP_PORT, "targetPort": "http", "appProtocol": "http"},
        # Gateways speak HTTP/2 without TLS to a port only if they are told.
        {
            "name": "grpc",
            "port": GRPC_PORT,
            "targetPort": "grpc",
            "appProtocol": "kubernetes.io/h2c",
        },
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": selector},
        "spec": {"selector": selector, "ports": ports},
    }


def routes(plan: ManifestPlan, services: Sequence[str]) -> list[Json]:
    """The way in: for two slots one HTTPRoute, because promote moves both protocols with it."""
    if plan.layout is ManifestLayout.BLUE_GREEN:
        grpc_calls = [
            {"headers": [{"type": "Exact", "name": "content-type", "value": value}]}
            for value in _GRPC_TYPES
        ]
        rules = [
            {"matches": grpc_calls, "backendRefs": _weighted(services, GRPC_PORT)},
            {"backendRefs": _weighted(services, HTTP_PORT)},
        ]
        return [_route(plan, "HTTPRoute", plan.name, plan.edge.hosts, rules)]
    (only,) = services
    http = [{"backendRefs": [{"name": only, "port": HTTP_PORT}]}]
    made = [_route(plan, "HTTPRoute", plan.name, plan.edge.hosts, http)]
    if plan.edge.grpc_host is not None:
        grpc = [{"backendRefs": [{"name": only, "port": GRPC_PORT}]}]
        hosts = (plan.edge.grpc_host,)
        made.append(_route(plan, "GRPCRoute", f"{plan.name}-grpc", hosts, grpc))
    return made


def policy(plan: ManifestPlan, selector: dict[str, str]) -> Json:
    """Only its own namespace, the Gateway's and those that were named connect to the pods.

    They connect to nobody, unless a setting names another server; then to anybody.
    """
    peers: list[Json] = [{"podSelector": {}}]
    gateway = (plan.edge.gateway or "").rpartition("/")[0]
    for each in dict.fromkeys((*([gateway] if gateway else []), *plan.edge.allow)):
        if "/" in each:
            peers.append({"ipBlock": {"cidr": each}})
        else:
            peers.append({"namespaceSelector": {"matchLabels": {_NAMESPACE: each}}})
    ports = [{"protocol": "TCP", "port": port} for port in (HTTP_PORT, GRPC_PORT)]
    calls = any("://" in value for value in plan.settings.values())
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": plan.name},
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": ports}],
            "egress": [{}] if calls else [],
        },
    }


def _route(
    plan: ManifestPlan, kind: str, name: str, hosts: Sequence[str], rules: list[Json]
) -> Json:
    namespace, _, gateway = (plan.edge.gateway or "").rpartition("/")
    parent = {"name": gateway, **({"namespace": namespace} if namespace else {})}
    spec = {"parentRefs": [parent], **({"hostnames": list(hosts)} if hosts else {}), "rules": rules}
    return {
        "apiVersion": f"{_GATEWAY_API}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _weighted(services: Sequence[str], port: int) -> list[Json]:
    blue, green = services
    return [
        {"name": blue, "port": port, "weight": _LIVE},
        {"name": green, "port": port, "weight": _IDLE},
    ]
