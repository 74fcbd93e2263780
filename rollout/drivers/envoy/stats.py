"""Envoy's admin answers as values; pure.

A slot's requests are counted where the route sent them (its `first` clusters, all kinds together).
gRPC has its own, because its failures have a status of HTTP, or their own, or both. Whose process
answered is counted there by zone: what the other slot answered, for a retry or because it alone is
healthy, is an error of the slot that the request was routed to, and its time is not that slot's. A
streaming answer is counted apart (`stream`), since its time is the length of a conversation: it may
fail, but it is not timed. A request whose client left before any answer is counted by the cluster
that held it (`own`), because Envoy completes it nowhere. Copies of requests have clusters of their
own (`shadow`); testers too, of which only the abandoned requests are read, in `own`.

What a server rejects by a client's own limit says nothing of the model, and is no request here. Its
header has Envoy count it apart, as it counts a canary's answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import (
    GRPC_CLIENT_ERRORS,
    GRPC_FAILURES,
    LATENCY_EDGES_MS,
    Reading,
    Totals,
)
from mlctl.rollout.drivers.envoy.config import INFER_METHODS, INFER_SERVICE
from mlctl.rollout.drivers.envoy.names import (
    KINDS,
    PROTOCOLS,
    PROXY_ZONE,
    answered_by,
    first_cluster,
    own_cluster,
    shadow_cluster,
    stream_cluster,
)

_Naming = Callable[[Slot, str], str]

_GRPC_PREFIXES = tuple(f"grpc.{INFER_SERVICE}.{method}." for method in INFER_METHODS)
_STATUS_FAILURES = tuple(
    f"{prefix}{status}" for prefix in _GRPC_PREFIXES for status in GRPC_FAILURES
)
_STATUS_CLIENT_ERRORS = tuple(
    f"{prefix}{status}" for prefix in _GRPC_PREFIXES for status in GRPC_CLIENT_ERRORS
)
# How Envoy lets go of a request: it closes an HTTP/1 connection, resets an HTTP/2 stream, or
# forgets what still waited for a connection.
_LET_GO = (
    "upstream_cx_destroy_local_with_active_rq",
    "upstream_rq_tx_reset",
    "upstream_rq_cancelled",
)

# See `mlctl.services.online.security.public.THROTTLED`.
_THROTTLED = "canary.upstream_rq_completed"

# The statistics of one scrape.
STATS_FILTER = (
    r"^cluster\.(blue|green)-((first|stream|shadow)-(http|infer|grpc)|http1|http2)\."
    r"(upstream_rq_(completed|5xx|4xx|429|active|tx_reset|cancelled|timeout)|"
    rf"{re.escape(_THROTTLED)}|zone\.{PROXY_ZONE}\.(blue|green)\.upstream_rq_(time|completed|5xx|4xx|429)|"
    r"upstream_cx_destroy_local_with_active_rq|membership_healthy|("
    + "|".join(map(re.escape, _GRPC_PREFIXES))
    + ")[0-9]+)$"
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

    def count(cluster: _Naming) -> dict[Slot, Totals]:
        return {slot: _totals(slot, cluster, values, histograms) for slot in Slot}

    pieces = count(stream_cluster)
    return Reading(
        totals={
            slot: totals.plus(_untimed(pieces[slot]))
            for slot, totals in count(first_cluster).items()
        },
        healthy={
            slot: all(n > 0 for n in _each(slot, "membership_healthy", values)) for slot in Slot
        },
        active={slot: sum(_each(slot, "upstream_rq_active", values)) for slot in Slot},
        shadow=count(shadow_cluster),
    )


def _each(slot: Slot, name: str, values: Mapping[str, int]) -> list[int]:
    """One value of the slot's own cluster for each protocol."""
    clusters = (own_cluster(slot, protocol) for protocol in PROTOCOLS)
    return [values.get(f"cluster.{cluster}.{name}", 0) for cluster in clusters]


def _totals(
    slot: Slot,
    cluster: _Naming,
    values: Mapping[str, int],
    histograms: Mapping[str, tuple[int, ...]],
) -> Totals:
    """All kinds together, as counted by the clusters with the names of `cluster`."""
    nothing = (0,) * len(LATENCY_EDGES_MS)
    total = Totals(within=nothing)
    for protocol in PROTOCOLS:
        names = [cluster(slot, kind) for kind in KINDS if KINDS[kind] == protocol]
        holders = [own_cluster(slot, protocol)] if cluster is first_cluster else names
        let_go = sum(values.get(f"cluster.{each}.{n}", 0) for each in holders for n in _LET_GO)
        # At the route's timeout Envoy lets go as well, but answers: 504, counted as an error.
        timeouts = sum(values.get(f"cluster.{each}.upstream_rq_timeout", 0) for each in names)
        total = total.plus(Totals(within=nothing, abandoned=max(0, let_go - timeouts)))
        for name in names:
            prefix, own = f"cluster.{name}.", answered_by(name, slot)
            throttled = values.get(prefix + _THROTTLED, 0)
            within = histograms.get(f"{own}upstream_rq_time", nothing)
            part = Totals(
                requests=max(0, values.get(f"{prefix}upstream_rq_completed", 0) - throttled),
                errors=max(0, _failures(name, slot, values) - throttled),
                timed=within[-1],
                within=within,
                client_errors=values.get(f"{own}upstream_rq_4xx", 0)
                - values.get(f"{own}upstream_rq_429", 0)
                + sum(values.get(prefix + status, 0) for status in _STATUS_CLIENT_ERRORS),
            )
            total = total.plus(part)
    return total


def _failures(cluster: str, slot: Slot, values: Mapping[str, int]) -> int:
    """Return the requests that the processes of `slot` did not answer, or with a failure.

    A full queue of a language model is 429, of any other model 503. Each counts once: a gRPC call
    that was reset has a 503 and a status.
    """
    other = answered_by(cluster, slot.other)
    rescued = values.get(f"{other}upstream_rq_completed", 0)
    failed = sum(
        values.get(f"cluster.{cluster}.{name}", 0) - values.get(f"{other}{name}", 0)
        for name in ("upstream_rq_5xx", "upstream_rq_429")
    )
    statuses = sum(values.get(f"cluster.{cluster}.{name}", 0) for name in _STATUS_FAILURES)
    return rescued + max(failed, statuses)


def _untimed(totals: Totals) -> Totals:
    return replace(totals, timed=0, within=(0,) * len(LATENCY_EDGES_MS))


def _within(histogram: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(bucket["cumulative"]) for bucket in histogram["buckets"])
