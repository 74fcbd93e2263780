"""Where a deployment meets its callers: its address, and TLS if the proxy has a certificate."""

from __future__ import annotations

from pathlib import Path

from mlctl.core.tls import TlsFiles
from mlctl.rollout.domain.spec import DeploymentSettings, Ports


def tls_of(settings: DeploymentSettings) -> TlsFiles | None:
    """The files of the proxy's listener, unchecked; None for plain HTTP."""
    return TlsFiles(*map(Path, settings.tls)) if settings.tls else None


def url_of(ports: Ports, settings: DeploymentSettings) -> str:
    """Where callers find the proxy of this machine."""
    host = f"[{ports.host}]" if ":" in ports.host else ports.host
    return f"{'https' if settings.tls else 'http'}://{host}:{ports.listen}"
