"""The options of `serve` and `up` for TLS and authentication."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.domain.spec import DeploymentSettings

FILE = click.Path(path_type=Path, resolve_path=True)
_TLS = (
    ("--tls-cert", "Serve over TLS with this certificate chain (PEM)."),
    ("--tls-key", "Private key of the certificate (PEM, without a password)."),
    ("--tls-client-ca", "Require client certificates signed by this CA (PEM)."),
)


def security_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tls-cert, --tls-key, --tls-client-ca and --insecure."""
    function = click.option(
        "--insecure",
        is_flag=True,
        help="Allow other machines to connect without authentication.",
    )(function)
    for name, text in reversed(_TLS):
        variable = "MLCTL" + name[1:].replace("-", "_").upper()
        function = click.option(name, type=FILE, envvar=variable, help=text)(function)
    return function


def security_settings(
    options: dict[str, Any], target: str
) -> tuple[bool, Callable[[DeploymentSettings], DeploymentSettings]]:
    """Remove these options of `up` from `options`; return --insecure, and a function that puts the
    others into settings. INVALID_INPUT for files that cannot be used.
    """
    from bundle.tls import checked_files

    insecure = bool(options.pop("insecure"))
    paths = [options.pop(name[2:].replace("-", "_")) for name, _ in _TLS]
    if target != "local" and any(paths):
        raise click.UsageError(
            "--tls-... is for --target local: in a cluster the Gateway has the certificate"
        )
    files = checked_files(*paths)
    found = () if files is None else (files.cert, files.key, files.client_ca)
    tls = tuple(str(path) for path in found if path is not None)
    return insecure, lambda settings: replace(settings, tls=tls)


def warn_exposure(
    output: CommandOutput, host: str, *, mutual: bool, encrypted: bool, insecure: bool
) -> None:
    """Warn about listening on `host` without protection; INVALID_INPUT if no terminal shows it."""
    from services.online.security.exposure import exposure
    from services.online.settings import load_settings

    warning = exposure(
        host,
        authenticated=mutual or load_settings().access().required,
        encrypted=encrypted,
        insecure=insecure,
        interactive=sys.stdin.isatty(),
    )
    if warning is not None:
        output.note(warning)
