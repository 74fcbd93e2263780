"""Settings of access control: tokens, TLS and signatures."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, SecretStr

from services.online.security.tls import Tls, tls_of
from services.runtime.access import Access


class SecureSettings(BaseModel):
    """Tokens, TLS and signatures; docs/security.md explains their use.

    One of `token` and `token_file` closes the API to callers without a token, and /metrics
    with it. `tls_cert` and `tls_key` switch TLS on, `tls_client_ca` requires
    a certificate of callers.
    """

    token: SecretStr | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def access(self) -> Access:
        """Who may call the API; INVALID_INPUT if the token or its file cannot be used."""
        token = None if self.token is None else self.token.get_secret_value()
        return Access(token, self.token_file)

    def check(self) -> None:
        """Raise INVALID_INPUT for settings that would keep a server from starting."""
        self.access()
        _ = self.tls

    @property
    def tls(self) -> Tls | None:
        """The checked files of TLS, None without; INVALID_INPUT names the one at fault."""
        return tls_of(self.tls_cert, self.tls_key, self.tls_client_ca)
