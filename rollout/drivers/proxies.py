"""What carries a deployment's traffic: Envoy on this machine, or a cluster's Gateway."""

from __future__ import annotations

from pathlib import Path

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.rollout.domain.interfaces import Proxy
from mlctl.rollout.domain.spec import DeploymentSettings, Ports
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS
from mlctl.rollout.drivers.envoy.proxy import EnvoyFiles


def edges_of(settings: DeploymentSettings) -> tuple[float, ...]:
    """The exact latency edges of what `settings` names, in milliseconds."""
    return LATENCY_EDGES_MS if settings.kubernetes is None else SERVED_EDGES_MS


def proxy_of(
    directory: Path, ports: Ports, settings: DeploymentSettings, epoch: int | None = None
) -> Proxy:
    """The proxy that `settings` names, with its files under `directory`.

    A cluster's is written only by a daemon, with its `epoch`.
    """
    if settings.kubernetes is not None:
        from mlctl.rollout.drivers.kubernetes.gateway import Gateway

        return Gateway(directory, settings.kubernetes, epoch)
    return EnvoyFiles(directory, ports, settings)
