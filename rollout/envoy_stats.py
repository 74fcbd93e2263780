"""Envoy's admin answers as values; pure.

A colour's requests are counted where the route sent them (its `first` cluster, HTTP and gRPC
together). A request that the other colour had to rescue is an error of the colour that was
asked: the retry counter says so. A request whose client left before any answer is counted by
the cluster that held it (`own`), because Envoy completes it nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollout.counts import Reading, Totals
from rollout.envoy_config import (
    INFER_METHOD,
    INFER_SERVICE,
    LATENCY_EDGES_MS,
    PROTOCOLS,
    first_cluster,
    own_cluster,
)
from rollout.model import Colour

_GRPC_PREFIX = f"grpc.{INFER_SERVICE}.{INFER_METHOD}."
# UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS; the other
# statuses blame the caller. RESOURCE_EXHAUSTED is also a full queue.
_GRPC_FAILURES = (2, 4, 8, 13, 14, 15)
_GRPC_CLIENT_ERRORS = (1, 3, 5, 6, 7, 9, 10, 11, 12, 16)
_ERRORS = (
    "upstream_rq_5xx",
    "upstream_rq_retry",
    "upstream_rq_rx_reset",
    *(f"{_GRPC_PREFIX}{status}" for status in _GRPC_FAILURES),
)
_CLIENT_ERRORS = (
    "upstream_rq_4xx",
    *(f"{_GRPC_PREFIX}{status}" for status in _GRPC_CLIENT_ERRORS),
)
# How Envoy lets go of a request: it closes an HTTP/1 connection, resets an HTTP/2 stream, or
# forgets what still waited for a connection.
_LET_GO = (
    "upstream_cx_destroy_local_with_active_rq",
    "upstream_rq_tx_reset",
    "upstream_rq_cancelled",
)

# What one scrape asks for.
STATS_FILTER = (
    r"^cluster\.(blue|green)-(first-)?(http|grpc)\."
    r"(upstream_rq_(time|completed|5xx|4xx|retry|rx_reset|active|tx_reset|cancelled|timeout)|"
    r"upstream_cx_destroy_local_with_active_rq|membership_healthy|"
    + re.escape(_GRPC_PREFIX)
    + "[0-9]+)$"
)


def parse_stats(document: Mapping[str, Any]) -> Reading:
    """The reading in `/stats?format=json&histogram_buckets=cumulative`."""
    values: dict[str, int] = {}
    histograms: dict[str, tuple[int, ...]] = {}
    for entry in document["stats"]:
        if "histograms" in entry:
            for histogram in entry["histograms"]:
                histograms[histogram["name"]] = _within(histogram)
        else:
            values[entry["name"]] = int(entry["value"])
    return Reading(
        totals={colour: _totals(colour, values, histograms) for colour in Colour},
        healthy={
            colour: all(
                values.get(f"cluster.{own_cluster(colour, protocol)}.membership_healthy", 0) > 0
                for protocol in PROTOCOLS
            )
            for colour in Colour
        },
        active={
            colour: sum(
                values.get(f"cluster.{own_cluster(colour, protocol)}.upstream_rq_active", 0)
                for protocol in PROTOCOLS
            )
            for colour in Colour
        },
    )


def parse_weights(document: Mapping[str, Any]) -> dict[Colour, int] | None:
    """The weights in `/config_dump?resource=dynamic_route_configs`.

    None before any route is there, and for routes that are not ours.
    """
    try:
        routes = document["configs"][0]["route_config"]["virtual_hosts"][0]["routes"]
        clusters = routes[0]["route"]["weighted_clusters"]["clusters"]
    except (KeyError, IndexError):
        return None
    # A weight of 0 is absent from the dump.
    by_name = {cluster["name"]: int(cluster.get("weight", 0)) for cluster in clusters}
    return {colour: by_name.get(first_cluster(colour, "grpc"), 0) for colour in Colour}


def _totals(
    colour: Colour, values: Mapping[str, int], histograms: Mapping[str, tuple[int, ...]]
) -> Totals:
    nothing = (0,) * len(LATENCY_EDGES_MS)
    total = Totals(within=nothing)
    for protocol in PROTOCOLS:
        prefix = f"cluster.{first_cluster(colour, protocol)}."
        within = histograms.get(f"{prefix}upstream_rq_time", nothing)
        part = Totals(
            requests=values.get(f"{prefix}upstream_rq_completed", 0),
            errors=sum(values.get(prefix + name, 0) for name in _ERRORS),
            timed=within[-1],
            within=within,
            client_errors=sum(values.get(prefix + name, 0) for name in _CLIENT_ERRORS),
            abandoned=_abandoned(colour, protocol, values),
        )
        total = total.plus(part)
    return total


def _abandoned(colour: Colour, protocol: str, values: Mapping[str, int]) -> int:
    prefix = f"cluster.{own_cluster(colour, protocol)}."
    let_go = sum(values.get(prefix + name, 0) for name in _LET_GO)
    # At the route's timeout Envoy lets go as well, but answers: 504, counted as an error.
    timeouts = values.get(f"cluster.{first_cluster(colour, protocol)}.upstream_rq_timeout", 0)
    return max(0, let_go - timeouts)


def _within(histogram: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(bucket["cumulative"]) for bucket in histogram["buckets"])
