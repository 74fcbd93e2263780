"""Where a deployment meets its callers: its address, and TLS if the proxy has a certificate."""

from __future__ import annotations

from pathlib import Path

from bundle.tls import TlsFiles
from rollout.model import Ports, Settings

# HTTP/2 first: gRPC needs it.
ALPN = ("h2", "http/1.1")
# bundle.tls.CIPHERS by their own names, for proxies that take no groups.
CIPHER_NAMES = tuple(
    f"ECDHE-{key}-{cipher}"
    for key in ("ECDSA", "RSA")
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
)


def tls_of(settings: Settings) -> TlsFiles | None:
    """The files of the proxy's listener, unchecked; None for plain HTTP."""
    return TlsFiles(*map(Path, settings.tls)) if settings.tls else None


def url_of(ports: Ports, settings: Settings) -> str:
    """Where callers find the proxy of this machine."""
    host = f"[{ports.host}]" if ":" in ports.host else ports.host
    return f"{'https' if settings.tls else 'http'}://{host}:{ports.listen}"
