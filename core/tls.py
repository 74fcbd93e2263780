"""The PEM files of a TLS listener, checked before anything starts.

TLS 1.2 or newer; below 1.3 only ciphers with forward secrecy and authentication. With a client CA,
callers need a certificate that it signed (mutual TLS).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_HINT = "Use PEM files: the certificate with its chain, its key without a password, and the CA."


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's certificate chain and key, and the CA of client certificates, if required."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raise INVALID_INPUT with the file that cannot be used, and the reason."""
        for path in (self.cert, self.key, self.client_ca):
            if path is not None:
                _require_readable(path)
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server; INVALID_INPUT if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        try:
            # Without this an encrypted key prompts for its password on the terminal.
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
    """Return the checked files, or None if no path is set; INVALID_INPUT if they are not valid."""
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


def _unusable(files: str, error: Exception) -> MlctlError:
    # The library's texts end with a position in its source: "[SSL: X] text (_ssl.c:1)".
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not a PEM file"
    text = str(reason).replace("_", " ").lower()
    return MlctlError(ErrorCode.INVALID_INPUT, f"TLS cannot use {files}: {text}", _HINT)
