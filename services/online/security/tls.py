"""TLS for both of the server's ports, in the forms that its libraries take."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.tls import CIPHERS, TlsFiles, checked_files


@dataclass(frozen=True, slots=True)
class Tls(TlsFiles):
    """The PEM files of a server: its chain and key, and the CA of its callers if they need one."""

    def bentoml_options(self) -> dict[str, Any]:
        """Its context for BentoML's `ssl` option. Python's default is at least TLS 1.2."""
        options: dict[str, Any] = {
            "enabled": True,
            "certfile": str(self.cert.absolute()),
            "keyfile": str(self.key.absolute()),
            "ciphers": CIPHERS,
        }
        if self.client_ca is not None:
            options["ca_certs"] = str(self.client_ca.absolute())
            options["cert_reqs"] = int(ssl.CERT_REQUIRED)
        return options


def tls_of(cert: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """The checked files, or None where no certificate is given; raises INVALID_INPUT."""
    files = checked_files(cert, key, client_ca)
    return None if files is None else Tls(files.cert, files.key, files.client_ca)
