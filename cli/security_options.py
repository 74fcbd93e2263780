"""The options of `serve` and `up` for TLS and authentication."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from mlctl.cli.options import option
from mlctl.cli.output import CommandOutput

FILE = click.Path(path_type=Path, resolve_path=True)


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """The certificate of a listener, and its consent to callers without authentication."""

    tls_cert: Path | None = option(
        type=FILE,
        envvar="MLCTL_TLS_CERT",
        help="Serve over TLS with this certificate chain (PEM).",
    )
    tls_key: Path | None = option(
        type=FILE,
        envvar="MLCTL_TLS_KEY",
        help="Private key of the certificate (PEM, without a password).",
    )
    tls_client_ca: Path | None = option(
        type=FILE,
        envvar="MLCTL_TLS_CLIENT_CA",
        help="Require client certificates signed by this CA (PEM).",
    )
    insecure: bool = option(help="Allow other machines to connect without authentication.")

    def files(self) -> tuple[Path, ...]:
        """Return certificate, key and CA as far as they are set; INVALID_INPUT if unusable."""
        from mlctl.core.tls import checked_files

        files = checked_files(self.tls_cert, self.tls_key, self.tls_client_ca)
        found = () if files is None else (files.cert, files.key, files.client_ca)
        return tuple(path for path in found if path is not None)

    def warn_exposure(self, output: CommandOutput, host: str) -> None:
        """Warn about listening on `host` unprotected; INVALID_INPUT if no terminal shows it."""
        from mlctl.core.exposure import exposure
        from mlctl.services.online.settings import load_settings

        warning = exposure(
            host,
            authenticated=self.tls_client_ca is not None or load_settings().access().required,
            encrypted=self.tls_cert is not None,
            insecure=self.insecure,
            interactive=sys.stdin.isatty(),
        )
        if warning is not None:
            output.note(warning)
