"""Runs the gate service in the foreground."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack

import uvicorn

from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import state_dir
from mlctl.core.packages import install_hint
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable
from mlctl.rollout.domain.kubernetes_target import Reach
from mlctl.rollout.drivers.kubernetes.meter import PodCounts, ServiceSource
from mlctl.rollout.gate_service.app import gate_app
from mlctl.rollout.gate_service.service import GateService
from mlctl.rollout.gate_service.sources import ServiceName, UrlSource
from mlctl.rollout.gate_service.store import SessionStore

# Rollouts that are remembered, each for this long without a request for it.
_MAX_SESSIONS = 10_000
_EXPIRE_SECONDS = 7 * 86_400.0


def serve(
    named: Mapping[str, tuple[str, ...] | ServiceName],
    *,
    host: str,
    port: int,
    pods: str,
) -> None:
    """Answer until interrupted. RUNTIME_MISSING for Services without lightkube."""
    with ExitStack() as stack:
        sources = {name: _source(location, pods, stack) for name, location in named.items()}
        path = state_dir("gate") / "sessions.db"
        store = SessionStore(
            path, SystemClock(), limit=_MAX_SESSIONS, expire_seconds=_EXPIRE_SECONDS
        )
        stack.callback(store.close)
        app = gate_app(GateService(sources, store))
        uvicorn.run(app, host=host, port=port, log_level="warning", server_header=False)


def _source(location: tuple[str, ...] | ServiceName, pods: str, stack: ExitStack) -> PodCounts:
    if isinstance(location, tuple):
        return UrlSource(location)
    try:
        from mlctl.rollout.drivers.kubernetes.cluster import Cluster
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "lightkube is not installed",
            install_hint("kubernetes"),
        ) from error
    try:
        reach = Reach(location.namespace, pods=pods, kubeconfig=os.environ.get("KUBECONFIG"))
        cluster = stack.enter_context(Cluster(reach))
    except DataPlaneUnavailable as error:
        raise MlctlError(ErrorCode.UNAVAILABLE, str(error)) from error
    return ServiceSource(lambda: cluster, location.service)
