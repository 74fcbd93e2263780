"""The settings of who may call, over which connections, and of the admin listener."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from bundle.errors import ErrorCode, MlctlError
from services.secure.exposure import is_loopback
from services.secure.tls import Tls, tls_of
from services.secure.tokens import Access


class SecureSettings(BaseSettings):
    """Tokens, TLS and the admin listener; docs/security.md tells how they are used.

    One of `token` and `token_file` closes the API to callers without a token, and /metrics
    with it unless `open_metrics`. `tls_cert` and `tls_key` switch TLS on, `tls_client_ca` asks
    callers for a certificate. `admin_port` opens the admin listener on `admin_host`, or
    `admin_dir` one for each worker on a Unix socket there. `require_signature` is the public key
    under which a bundle must be signed to be served.
    """

    token: SecretStr | None = None
    token_file: Path | None = None
    open_metrics: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    admin_host: str = "127.0.0.1"
    admin_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    admin_dir: Path | None = None
    admin_token_file: Path | None = None
    require_signature: Path | None = None

    def access(self) -> Access:
        """Who may call the API; INVALID_INPUT if the token or its file cannot be used."""
        token = None if self.token is None else self.token.get_secret_value()
        return Access(token, self.token_file)

    def admin_access(self) -> Access:
        """Who may call the admin listener; raises as `access` does."""
        return Access(file=self.admin_token_file, name="MLCTL_ADMIN_TOKEN")

    def check(self, workers: int) -> None:
        """Raise INVALID_INPUT for what would keep a server of so many workers from starting."""
        self.access()
        self.admin_access()
        _ = self.tls
        if self.admin_port is None or self.admin_dir is not None:
            return
        if workers > 1:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{workers} workers cannot share one admin port",
                "Set MLCTL_ADMIN_DIR instead: each worker listens on a Unix socket there.",
            )
        if not is_loopback(self.admin_host) and self.admin_token_file is None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the admin listener would be open to other machines on {self.admin_host}",
                "Set MLCTL_ADMIN_TOKEN_FILE, or leave MLCTL_ADMIN_HOST at 127.0.0.1.",
            )

    @property
    def tls(self) -> Tls | None:
        """The checked files of TLS, None without; INVALID_INPUT names the one at fault."""
        return tls_of(self.tls_cert, self.tls_key, self.tls_client_ca)
