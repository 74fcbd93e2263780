"""The proxies that can carry a deployment's traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollout.envoy import EnvoyFiles
from rollout.model import Ports, Settings
from rollout.planes.haproxy import HaproxyFiles
from rollout.ports import Proxy


def proxy_of(directory: Path, ports: Ports, settings: Settings) -> Proxy:
    """The proxy that `settings` names, with its files under `directory`."""
    kinds: dict[str, Callable[[Path, Ports], Proxy]] = {
        "envoy": EnvoyFiles,
        "haproxy": HaproxyFiles,
    }
    return kinds[settings.proxy](directory, ports)
