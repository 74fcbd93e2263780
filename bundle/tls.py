"""The PEM files of a listener with TLS, checked before anything starts.

At least TLS 1.2, and below 1.3 only ciphers with forward secrecy and authentication.
With a client CA only callers that show a certificate of it are answered (mutual TLS).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_HINT = "Give PEM files: the certificate with its chain, its key without a password, and the CA."


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's chain and key, and the CA of its callers if they need a certificate."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """INVALID_INPUT names the file that cannot be used, and why."""
        for path in (self.cert, self.key, self.client_ca):
            if path is not None:
                _require_readable(path)
        self.context()

    def context(self) -> ssl.SSLContext:
        """A server's side of connections; raises INVALID_INPUT."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        try:
            # An encrypted key would ask for its password on the terminal.
            context.load_cert_chain(self.cert, self.key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise _unusable(f"{self.cert} and {self.key}", error) from None
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise _unusable(str(self.client_ca), error) from None
        return context


def checked_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """The checked files, or None where none is given; raises INVALID_INPUT."""
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "TLS needs both a certificate and its key",
            "Set MLCTL_TLS_CERT and MLCTL_TLS_KEY, or --tls-cert and --tls-key.",
        )
    files = TlsFiles(cert, key, client_ca)
    files.check()
    return files


def _require_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise _unusable(str(path), error) from None


def _unusable(what: str, error: Exception) -> MlctlError:
    # The library's own names end with where in its source it was: "[SSL: X] text (_ssl.c:1)".
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "no PEM file"
    told = str(reason).replace("_", " ").lower()
    return MlctlError(ErrorCode.INVALID_INPUT, f"TLS cannot use {what}: {told}", _HINT)
