"""Envoy's route file: weights, testers, copies and stickiness as one document. Pure.

One file holds all of it, so a change is seen as a whole or not at all. What it says is repeated
in its metadata, where the driver reads back which file is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlctl.rollout.domain.interfaces import TrafficSplit
from mlctl.rollout.domain.spec import DeploymentSettings, Slot
from mlctl.rollout.drivers.envoy.names import (
    Document,
    first_cluster,
    shadow_cluster,
    stream_cluster,
    tester_cluster,
)
from mlctl.rollout.drivers.headers import (
    CLIENT_COOKIE,
    CLIENT_HEADER,
    COPY_HEADER,
    REQUEST_ID_HEADER,
    TESTER_COOKIE,
    TESTER_HEADER,
    TESTER_VALUE,
)

ROUTES_FILE = "routes.json"
ROUTE_NAME = "deployment"
# Streamed answers, and all generated text, take as long as their pieces take. HTTP's streams send
# something every 15 s, gRPC's may be silent for as long as a piece takes to be made.
_STREAMS = {
    "http": ".*/(infer_stream|generate|generate_stream)|/v1/(chat/)?completions",
    "grpc": ".*/(ModelStreamInfer|Watch|ServerReflectionInfo)",
}
# Of a body, for a retry and for copies: Envoy's default. The listener's own buffer is smaller.
_KEPT_BYTES = 1 << 20
_OURS = "mlctl"
# The first route that matches is taken. Infer requests have answers that are sent as a whole.
_POST = {"name": ":method", "string_match": {"exact": "POST"}}
_INFER = "/v2/models/[^/]+(/versions/[^/]+)?/infer"
_MATCHES: dict[str, Document] = {
    "grpc": {"prefix": "/", "grpc": {}},
    "infer": {"safe_regex": {"regex": _INFER}, "headers": [_POST]},
    "http": {"prefix": "/"},
}


def route_table(traffic: TrafficSplit, settings: DeploymentSettings) -> Document:
    """The route file: how requests are shared out, and how long a response may take."""
    routes = [*_tester_routes(traffic.testers)]
    for kind in _MATCHES:
        if traffic.sticky and kind != "grpc":
            routes.append((kind, _newcomer_route(traffic, kind)))
        routes.append((kind, _weighted_route(traffic, kind)))
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
                        "request_body_buffer_limit": _KEPT_BYTES,
                        "routes": [
                            one for kind, route in routes for one in _timed(kind, route, settings)
                        ],
                    }
                ],
            }
        ]
    }


def parse_traffic(document: Mapping[str, Any]) -> TrafficSplit | None:
    """What the routes in `/config_dump?resource=dynamic_route_configs` do.

    None before any route is there, and for routes that are not ours. The weights are those of
    the clusters themselves.
    """
    try:
        routes = document["configs"][0]["route_config"]["virtual_hosts"][0]["routes"]
        clusters = routes[-1]["route"]["weighted_clusters"]["clusters"]
        described = routes[-1]["metadata"]["filter_metadata"][_OURS]
    except (KeyError, IndexError):
        return None
    # A weight of 0 is absent from the dump.
    by_name = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in clusters}
    weights = {slot: by_name.get(first_cluster(slot, "http"), 0) for slot in Slot}
    return TrafficSplit(
        weights,
        int(described["mirror"]),
        _slot(described["mirror_to"]),
        _slot(described["testers"]),
        bool(described["sticky"]),
    )


def _slot(name: str) -> Slot | None:
    return Slot(name) if name else None


def _description(traffic: TrafficSplit) -> Document:
    return {
        "mirror": traffic.mirror,
        "mirror_to": traffic.mirror_to or "",
        "testers": traffic.testers or "",
        "sticky": traffic.sticky,
    }


def _weighted_route(traffic: TrafficSplit, kind: str) -> Document:
    clusters = [
        {"name": first_cluster(slot, kind), "weight": traffic.weights[slot]} for slot in Slot
    ]
    weighted: Document = {"clusters": clusters}
    action: Document = {"weighted_clusters": weighted}
    if traffic.sticky:
        # The hash replaces the random choice: a client stays on its slot while it grows.
        weighted["use_hash_policy"] = True
        action["hash_policy"] = _hash_policy()
    if traffic.mirror and traffic.mirror_to is not None:
        action["request_mirror_policies"] = [
            _mirror_policy(shadow_cluster(traffic.mirror_to, kind), traffic.mirror)
        ]
    return {
        "match": {**_MATCHES[kind]},
        "route": action,
        "metadata": {"filter_metadata": {_OURS: _description(traffic)}},
    }


def _newcomer_route(traffic: TrafficSplit, kind: str) -> Document:
    """The weighted route of a client without a cookie: its first request's id becomes one."""
    cookie = f"{CLIENT_COOKIE}=%REQ({REQUEST_ID_HEADER})%; Path=/; HttpOnly"
    tester = {
        **_cookie_mark(CLIENT_COOKIE, "[^;]+"),
        "invert_match": True,
        "treat_missing_header_as_empty": True,
    }
    return {
        **_weighted_route(traffic, kind),
        "match": _marked(kind, tester),
        "response_headers_to_add": [{"header": {"key": "set-cookie", "value": cookie}}],
    }


def _tester_routes(testers: Slot | None) -> list[tuple[str, Document]]:
    """Return the routes of testers, by header or cookie; they precede the weighted ones."""
    if testers is None:
        return []
    marks = (
        {"name": TESTER_HEADER, "string_match": {"exact": TESTER_VALUE}},
        _cookie_mark(TESTER_COOKIE, TESTER_VALUE),
    )
    return [
        (kind, {"match": _marked(kind, mark), "route": {"cluster": tester_cluster(testers, kind)}})
        for kind in _MATCHES
        for mark in marks
    ]


def _marked(kind: str, mark: Document) -> Document:
    """The match of a kind's requests that also have `mark`."""
    match = _MATCHES[kind]
    return {**match, "headers": [*match.get("headers", ()), mark]}


def _cookie_mark(name: str, value: str) -> Document:
    pattern = rf"(?:.*;\s*)?{name}={value}(?:\s*;.*)?"
    return {"name": "cookie", "string_match": {"safe_regex": {"regex": pattern}}}


def _timed(kind: str, route: Document, settings: DeploymentSettings) -> tuple[Document, ...]:
    """`route` with its timeouts, and before it the same for streaming responses, if there are any.

    These are counted apart and not copied: servers do not record them.
    """
    # Without an idle timeout of its own a route has Envoy's, of 5 minutes.
    limit = settings.request_seconds
    idle = max(limit, settings.stream_idle_seconds)
    whole = {**route["route"], "timeout": f"{limit:g}s", "idle_timeout": f"{idle:g}s"}
    if kind not in _STREAMS:
        return ({**route, "route": whole},)
    match = {name: value for name, value in route["match"].items() if name != "prefix"}
    silence = f"{settings.stream_idle_seconds:g}s"
    action = {**route["route"], "timeout": "0s", "idle_timeout": silence}
    action.pop("request_mirror_policies", None)
    if weighted := action.get("weighted_clusters"):
        shares = [
            {"name": stream_cluster(slot, kind), "weight": cluster["weight"]}
            for slot, cluster in zip(Slot, weighted["clusters"], strict=True)
        ]
        action["weighted_clusters"] = {**weighted, "clusters": shares}
    streams = {"safe_regex": {"regex": _STREAMS[kind]}, **match}
    return {**route, "match": streams, "route": action}, {**route, "route": whole}


def _hash_policy() -> list[Document]:
    """By the client's own header, else its cookie, else what its cookie is going to be."""
    return [
        {"header": {"header_name": CLIENT_HEADER}, "terminal": True},
        {"cookie": {"name": CLIENT_COOKIE}, "terminal": True},
        {"header": {"header_name": REQUEST_ID_HEADER}},
    ]


def _mirror_policy(cluster: str, percent: int) -> Document:
    return {
        "cluster": cluster,
        "runtime_fraction": {"default_value": {"numerator": percent, "denominator": "HUNDRED"}},
        "trace_sampled": False,
        "disable_shadow_host_suffix_append": True,
        "request_headers_mutations": [{"append": {"header": {"key": COPY_HEADER, "value": "1"}}}],
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
