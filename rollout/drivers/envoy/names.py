"""The names of Envoy's clusters and files, which its parts of the configuration share."""

from __future__ import annotations

from typing import Any

from rollout.domain.spec import Slot

PROTOCOLS = ("http", "grpc")

Document = dict[str, Any]


def own_cluster(colour: Slot, protocol: str) -> str:
    """The name of the cluster that holds only the processes of `colour`."""
    return f"{colour}-{protocol}"


def first_cluster(colour: Slot, protocol: str) -> str:
    """The name of the cluster that prefers `colour` and falls over to the other one."""
    return f"{colour}-first-{protocol}"


def stream_cluster(colour: Slot, protocol: str) -> str:
    """The name of the cluster that is as `first_cluster`, for answers in pieces."""
    return f"{colour}-stream-{protocol}"


def tester_cluster(colour: Slot, protocol: str) -> str:
    """The name of the cluster that counts the testers of `colour`, and falls over to nothing."""
    return f"{colour}-tester-{protocol}"


def shadow_cluster(colour: Slot, protocol: str) -> str:
    """The name of the cluster that copies of requests go to."""
    return f"{colour}-shadow-{protocol}"


def endpoints_file(colour: Slot, protocol: str) -> str:
    """The file name under the endpoint directory for one cluster."""
    return f"{own_cluster(colour, protocol)}.json"
