"""Settings of access control: tokens, TLS and signatures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from mlctl.core.tls import TlsFiles, checked_files
from mlctl.services.access import Access


class SecureSettings(BaseModel):
    """Tokens and TLS; docs/security.md explains their use.

    Attributes:
        token: the token that callers must show, on /metrics too.
        token_file: file of accepted tokens, one per line, each as `TOKEN` or `NAME: TOKEN`.
        max_client_rps: requests per second of each client that the tokens name, in each worker
            process: beyond them 429 `rate_limit_exceeded`, gRPC `RESOURCE_EXHAUSTED`; unset, no
            limit.
        tls_cert: certificate chain (PEM).
        tls_key: private key (PEM).
        tls_client_ca: CA of the certificates that clients must show (PEM).
    """

    token: SecretStr | None = None
    token_file: Path | None = None
    max_client_rps: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def access(self) -> Access:
        """Return the accepted tokens; INVALID_INPUT if the token or its file cannot be used."""
        token = None if self.token is None else self.token.get_secret_value()
        return Access(token, self.token_file, self.max_client_rps)

    def check(self) -> None:
        """Raise INVALID_INPUT for settings that would keep a server from starting."""
        self.access()
        _ = self.tls

    @property
    def tls(self) -> TlsFiles | None:
        """The checked files of TLS, or None; INVALID_INPUT names the file at fault."""
        return checked_files(self.tls_cert, self.tls_key, self.tls_client_ca)
