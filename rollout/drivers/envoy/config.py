"""Envoy's configuration as plain documents; no I/O here.

One listener takes HTTP/1.1, h2 and gRPC. Each slot has one cluster of its replicas per protocol,
and in front of it an aggregate cluster that falls over to the other slot, because a weighted
route never leaves a chosen cluster that is dead. Each slot is a zone, so that Envoy counts by zone
which slot's processes answered. Testers and copies have clusters of their own,
so that they do not count as users. Routes and endpoints are files that Envoy watches, so
weights and processes change without a restart, and the last weights survive one.
"""

from __future__ import annotations

from pathlib import Path

from rollout.domain.counts import LATENCY_EDGES_MS
from rollout.domain.spec import Endpoint, Ports, Slot
from rollout.drivers.envoy.names import (
    PROTOCOLS,
    PROXY_ZONE,
    Document,
    endpoints_file,
    first_cluster,
    own_cluster,
    shadow_cluster,
    stream_cluster,
    tester_cluster,
)
from rollout.drivers.envoy.routes import ROUTE_NAME, ROUTES_FILE

INFER_SERVICE = "inference.GRPCInferenceService"
INFER_METHODS = ("ModelInfer", "ModelStreamInfer")


def bootstrap(
    ports: Ports, routes: Path, endpoints: Path, security: Document | None = None
) -> Document:
    """The static part: admin on loopback, the listener, the clusters, histogram edges.

    `routes` and `endpoints` are absolute directories, watched for renames into them; `security`
    is the listener's transport socket, None for plain HTTP.
    """
    return {
        "admin": {"address": _address("127.0.0.1", ports.admin)},
        "node": {"id": "mlctl", "cluster": "mlctl", "locality": {"zone": PROXY_ZONE}},
        # Without it the histograms move only at the flush interval, not at each reading.
        "stats_flush_on_admin": True,
        "stats_config": {
            "histogram_bucket_settings": [
                {"match": {"suffix": "upstream_rq_time"}, "buckets": list(LATENCY_EDGES_MS)}
            ]
        },
        "static_resources": {
            "listeners": [_listener(ports, routes, security)],
            "clusters": [
                cluster
                for protocol in PROTOCOLS
                for slot in Slot
                for cluster in _clusters(slot, protocol, endpoints)
            ],
        },
    }


def endpoint_table(slot: Slot, protocol: str, endpoints: tuple[Endpoint, ...]) -> Document:
    """One cluster's endpoint file: all replicas; an empty one while the slot has no process."""
    replicas = [_lb_endpoint(endpoint, protocol) for endpoint in endpoints]
    group = {"locality": {"zone": slot}, "lb_endpoints": replicas}
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": own_cluster(slot, protocol),
                "endpoints": [group] if replicas else [],
            }
        ]
    }


def _lb_endpoint(endpoint: Endpoint, protocol: str) -> Document:
    port = endpoint.grpc if protocol == "grpc" else endpoint.http
    return {
        "endpoint": {
            "address": _address("127.0.0.1", port),
            # Health checks go to the HTTP port, where the server answers for both.
            "health_check_config": {"port_value": endpoint.http},
        }
    }


def _listener(ports: Ports, routes: Path, security: Document | None) -> Document:
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network"
        ".http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "server_header_transformation": "PASS_THROUGH",
        # One id joins a request, its copy and both answers; a client's own is kept as it is.
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "request_id_extension": {"typed_config": _plain_request_id()},
        "rds": {
            "route_config_name": ROUTE_NAME,
            "config_source": _file_source(routes, ROUTES_FILE),
        },
        "http_filters": [_grpc_stats_filter(), _router_filter()],
    }
    return {
        "name": "ingress",
        "address": _address(ports.host, ports.listen),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ],
                **({} if security is None else {"transport_socket": security}),
            }
        ],
    }


def _plain_request_id() -> Document:
    return {
        "@type": "type.googleapis.com/envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
        "pack_trace_reason": False,
    }


def _grpc_stats_filter() -> Document:
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        "individual_method_stats_allowlist": {
            "services": [{"name": INFER_SERVICE, "method_names": list(INFER_METHODS)}]
        },
    }
    return {"name": "envoy.filters.http.grpc_stats", "typed_config": config}


def _router_filter() -> Document:
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        "suppress_envoy_headers": True,
    }
    return {"name": "envoy.filters.http.router", "typed_config": config}


def _clusters(slot: Slot, protocol: str, endpoints: Path) -> tuple[Document, ...]:
    own = own_cluster(slot, protocol)
    preferring = [own, own_cluster(slot.other, protocol)]
    return (
        _own_cluster(slot, protocol, endpoints),
        _aggregate(first_cluster(slot, protocol), preferring),
        _aggregate(stream_cluster(slot, protocol), preferring),
        _aggregate(tester_cluster(slot, protocol), [own]),
        _replicas(shadow_cluster(slot, protocol), slot, protocol, endpoints),
    )


def _own_cluster(slot: Slot, protocol: str, endpoints: Path) -> Document:
    return {
        **_replicas(own_cluster(slot, protocol), slot, protocol, endpoints),
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            # The default holds back changes of health for up to a second.
            "update_merge_window": "0s",
        },
        "ignore_health_on_host_removal": True,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
    }


def _replicas(name: str, slot: Slot, protocol: str, endpoints: Path) -> Document:
    """A cluster of the processes of `slot`; the least busy of two gets the request."""
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {
            "service_name": own_cluster(slot, protocol),
            "eds_config": _file_source(endpoints, endpoints_file(slot, protocol)),
        },
        "lb_policy": "LEAST_REQUEST",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": _upstream_protocol(protocol),
        "circuit_breakers": {"thresholds": [_thresholds()]},
    }


def _aggregate(name: str, order: list[str]) -> Document:
    """A cluster that counts for itself and sends to the first of `order` that is healthy."""
    return {
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": order,
            },
        },
        "circuit_breakers": {"thresholds": [_thresholds()]},
    }


def _upstream_protocol(protocol: str) -> Document:
    if protocol == "grpc":
        options: Document = {"explicit_http_config": {"http2_protocol_options": {}}}
    else:
        options = {
            "explicit_http_config": {"http_protocol_options": {}},
            # Below any server's keep-alive time (5 s or more): else both close at once and a
            # request written in between is lost.
            "common_http_protocol_options": {"idle_timeout": "3s"},
        }
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {kind: {"@type": f"type.googleapis.com/{kind}", **options}}


def _health_check() -> Document:
    return {
        "timeout": "1s",
        "interval": "0.5s",
        "no_traffic_interval": "0.5s",
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/v2/health/ready"},
    }


def _outlier_detection() -> Document:
    # Only connections that fail eject: an error status is for the gates to judge.
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 2,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "interval": "0.5s",
        "base_ejection_time": "2s",
        "max_ejection_percent": 100,
    }


def _thresholds() -> Document:
    return {"max_connections": 4096, "max_pending_requests": 8192, "max_requests": 8192}


def _file_source(directory: Path, name: str) -> Document:
    return {
        "path_config_source": {
            "path": str(directory / name),
            "watched_directory": {"path": str(directory)},
        },
        "resource_api_version": "V3",
    }


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}
