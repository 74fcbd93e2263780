"""Warn about a port that other machines reach, or reject it without authentication. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from mlctl.core.errors import ErrorCode, MlctlError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`; a name may mean any address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def exposure(
    host: str, *, authenticated: bool, encrypted: bool, insecure: bool, interactive: bool
) -> str | None:
    """The sentence about listening on `host`; None where other machines do not reach it.

    INVALID_INPUT for a public address, unless an operator sees the warning (`interactive`) or
    accepted it (`insecure`).
    """
    if is_loopback(host):
        return None
    if authenticated:
        if encrypted:
            return f"{host} is reachable from other machines."
        return f"Warning: tokens for {host} travel in the clear. --tls-cert encrypts them."
    if insecure or interactive:
        return f"Warning: {host} is reachable from other machines, without authentication."
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{host} is reachable from other machines, and callers need no token",
        "Require a token (MLCTL_TOKEN_FILE) or certificates (--tls-client-ca), or allow it with "
        "--insecure.",
    )
