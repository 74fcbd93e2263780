"""The proxies that can carry a deployment's traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bundle.latency import SERVED_EDGES_MS
from bundle.tls import TlsFiles
from rollout.judging.counts import LATENCY_EDGES_MS
from rollout.model import Ports, Settings
from rollout.planes.edge import tls_of
from rollout.planes.envoy import EnvoyFiles
from rollout.planes.haproxy import HaproxyFiles
from rollout.ports import Proxy


def edges_of(settings: Settings) -> tuple[float, ...]:
    """The exact latency edges of what `settings` names, in milliseconds."""
    return LATENCY_EDGES_MS if settings.kubernetes is None else SERVED_EDGES_MS


def can_copy(settings: Settings) -> bool:
    """Whether what `settings` names can copy requests to a candidate."""
    return settings.kubernetes is None and settings.proxy == "envoy"


def proxy_of(directory: Path, ports: Ports, settings: Settings, epoch: int | None = None) -> Proxy:
    """The proxy that `settings` names, with its files under `directory`.

    A cluster's is written only by a daemon, with its `epoch`.
    """
    if settings.kubernetes is not None:
        from rollout.kubernetes.gateway import Gateway

        return Gateway(directory, settings.kubernetes, epoch)
    kinds: dict[str, Callable[[Path, Ports, TlsFiles | None], Proxy]] = {
        "envoy": EnvoyFiles,
        "haproxy": HaproxyFiles,
    }
    return kinds[settings.proxy](directory, ports, tls_of(settings))
