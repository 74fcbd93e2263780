"""The names of Envoy's clusters and files, which its parts of the configuration share."""

from __future__ import annotations

from typing import Any

from mlctl.rollout.domain.spec import Slot

# How the proxy reaches a server: one request at a time on a connection, or many.
PROTOCOLS = ("http1", "http2")
# What requests are counted apart, and how each goes to the servers.
KINDS = {"http": "http1", "infer": "http2", "grpc": "http2"}
PROXY_ZONE = "proxy"

Document = dict[str, Any]


def own_cluster(slot: Slot, protocol: str) -> str:
    """The name of the cluster that holds only the processes of `slot`."""
    return f"{slot}-{protocol}"


def first_cluster(slot: Slot, kind: str) -> str:
    """The name of the cluster that prefers `slot` and falls over to the other one."""
    return f"{slot}-first-{kind}"


def stream_cluster(slot: Slot, kind: str) -> str:
    """The name of the cluster that is as `first_cluster`, for answers in pieces."""
    return f"{slot}-stream-{kind}"


def tester_cluster(slot: Slot, kind: str) -> str:
    """The name of the cluster that counts the testers of `slot`, and falls over to nothing."""
    return f"{slot}-tester-{kind}"


def shadow_cluster(slot: Slot, kind: str) -> str:
    """The name of the cluster that copies of requests go to."""
    return f"{slot}-shadow-{kind}"


def answered_by(cluster: str, slot: Slot) -> str:
    """The prefix of the statistics of those requests to `cluster` that `slot` answered."""
    return f"cluster.{cluster}.zone.{PROXY_ZONE}.{slot}."


def endpoints_file(slot: Slot, protocol: str) -> str:
    """The file name under the endpoint directory for one cluster."""
    return f"{own_cluster(slot, protocol)}.json"
