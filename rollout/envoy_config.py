"""Envoy's configuration as plain documents; no I/O here.

One listener takes HTTP/1.1, h2c and gRPC. Each colour has one cluster per protocol and one
aggregate cluster that falls over to the other colour, because a weighted route never leaves a
chosen cluster that is dead. Routes and endpoints are files that Envoy watches, so weights and
processes change without a restart, and the last weights survive one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.model import Colour, Endpoint, Ports

PROTOCOLS = ("http", "grpc")
ROUTES_FILE = "routes.json"
ROUTE_NAME = "deployment"
TOTAL_WEIGHT = 100
INFER_SERVICE = "inference.GRPCInferenceService"
INFER_METHOD = "ModelInfer"

Document = dict[str, Any]

# Envoy's histograms keep two significant digits, so these are all the exact edges there are.
LATENCY_EDGES_MS: tuple[float, ...] = (
    *(float(ms) for ms in range(1, 100)),
    *(float(ms) for ms in range(100, 1000, 10)),
    *(float(ms) for ms in range(1000, 10_000, 100)),
    *(float(ms) for ms in range(10_000, 61_000, 1000)),
)


def own_cluster(colour: Colour, protocol: str) -> str:
    """The name of the cluster that holds only the processes of `colour`."""
    return f"{colour}-{protocol}"


def first_cluster(colour: Colour, protocol: str) -> str:
    """The name of the cluster that prefers `colour` and falls over to the other one."""
    return f"{colour}-first-{protocol}"


def endpoints_file(colour: Colour, protocol: str) -> str:
    """The file name under the endpoint directory for one cluster."""
    return f"{own_cluster(colour, protocol)}.json"


def latency_edge(limit_ms: float) -> float:
    """The smallest exact histogram edge at or above `limit_ms`; the last edge if none is."""
    return next((edge for edge in LATENCY_EDGES_MS if edge >= limit_ms), LATENCY_EDGES_MS[-1])


def bootstrap(ports: Ports, routes: Path, endpoints: Path) -> Document:
    """The static part: admin on loopback, the listener, eight clusters, histogram edges.

    `routes` and `endpoints` are absolute directories, watched for renames into them.
    """
    return {
        "admin": {"address": _address("127.0.0.1", ports.admin)},
        "node": {"id": "mlctl", "cluster": "mlctl"},
        # Without it the histograms move only at the flush interval, not at each reading.
        "stats_flush_on_admin": True,
        "stats_config": {
            "histogram_bucket_settings": [
                {"match": {"suffix": "upstream_rq_time"}, "buckets": list(LATENCY_EDGES_MS)}
            ]
        },
        "static_resources": {
            "listeners": [_listener(ports, routes)],
            "clusters": [
                cluster
                for protocol in PROTOCOLS
                for colour in Colour
                for cluster in (
                    _own_cluster(colour, protocol, endpoints),
                    _first_cluster(colour, protocol),
                )
            ],
        },
    }


def route_table(weights: Mapping[Colour, int], timeout_seconds: float = 60.0) -> Document:
    """The route file: both colours' weights (percent, sum 100) for gRPC and for HTTP."""
    if sum(weights.values()) != TOTAL_WEIGHT:
        raise ValueError(f"weights must sum to {TOTAL_WEIGHT}: {dict(weights)}")
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
                "name": ROUTE_NAME,
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "retry_policy": _retry_policy(),
                        "routes": [
                            _route({"prefix": "/", "grpc": {}}, "grpc", weights, timeout_seconds),
                            _route({"prefix": "/"}, "http", weights, timeout_seconds),
                        ],
                    }
                ],
            }
        ]
    }


def endpoint_table(colour: Colour, protocol: str, endpoint: Endpoint | None) -> Document:
    """One cluster's endpoint file; an empty one while the colour has no process."""
    endpoints = [] if endpoint is None else [{"lb_endpoints": [_lb_endpoint(endpoint, protocol)]}]
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": own_cluster(colour, protocol),
                "endpoints": endpoints,
            }
        ]
    }


def _lb_endpoint(endpoint: Endpoint, protocol: str) -> Document:
    port = endpoint.grpc if protocol == "grpc" else endpoint.http
    return {
        "endpoint": {
            "address": _address("127.0.0.1", port),
            # Health is always asked of the HTTP port, where the server answers for both.
            "health_check_config": {"port_value": endpoint.http},
        }
    }


def _listener(ports: Ports, routes: Path) -> Document:
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network"
        ".http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "codec_type": "AUTO",
        "use_remote_address": True,
        "server_header_transformation": "PASS_THROUGH",
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
                ]
            }
        ],
    }


def _grpc_stats_filter() -> Document:
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
        "individual_method_stats_allowlist": {
            "services": [{"name": INFER_SERVICE, "method_names": [INFER_METHOD]}]
        },
    }
    return {"name": "envoy.filters.http.grpc_stats", "typed_config": config}


def _router_filter() -> Document:
    config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        "suppress_envoy_headers": True,
    }
    return {"name": "envoy.filters.http.router", "typed_config": config}


def _route(
    match: Document, protocol: str, weights: Mapping[Colour, int], timeout_seconds: float
) -> Document:
    clusters = [
        {"name": first_cluster(colour, protocol), "weight": weights.get(colour, 0)}
        for colour in Colour
    ]
    return {
        "match": match,
        "route": {"weighted_clusters": {"clusters": clusters}, "timeout": f"{timeout_seconds:g}s"},
    }


def _retry_policy() -> Document:
    # Only failures before the request reached a server: a prediction may not be idempotent.
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 2,
        "retry_priority": {
            "name": "envoy.retry_priorities.previous_priorities",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.priority"
                ".previous_priorities.v3.PreviousPrioritiesConfig",
                "update_frequency": 1,
            },
        },
    }


def _own_cluster(colour: Colour, protocol: str, endpoints: Path) -> Document:
    return {
        "name": own_cluster(colour, protocol),
        "type": "EDS",
        "eds_cluster_config": {
            "eds_config": _file_source(endpoints, endpoints_file(colour, protocol))
        },
        "connect_timeout": "1s",
        "typed_extension_protocol_options": _upstream_protocol(protocol),
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            # The default holds back changes of health for up to a second.
            "update_merge_window": "0s",
        },
        "ignore_health_on_host_removal": True,
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        "circuit_breakers": {"thresholds": [_thresholds()]},
    }


def _first_cluster(colour: Colour, protocol: str) -> Document:
    order = [own_cluster(colour, protocol), own_cluster(colour.other, protocol)]
    return {
        "name": first_cluster(colour, protocol),
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
            # Below the server's keep-alive time (5 s): else both close at once and a request
            # written in between is lost.
            "common_http_protocol_options": {"idle_timeout": "3s"},
        }
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {kind: {"@type": f"type.googleapis.com/{kind}", **options}}


def _health_check() -> Document:
    return {
        "timeout": "2s",
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
