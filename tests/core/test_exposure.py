from __future__ import annotations

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.exposure import exposure, is_loopback


def told(
    host: str,
    *,
    authenticated: bool = False,
    encrypted: bool = False,
    insecure: bool = False,
    interactive: bool = False,
) -> str | None:
    return exposure(
        host,
        authenticated=authenticated,
        encrypted=encrypted,
        insecure=insecure,
        interactive=interactive,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_exposure__loopback__has_no_warning(host: str) -> None:
    assert is_loopback(host)
    assert told(host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_exposure__public_address_without_a_token__needs_insecure(host: str) -> None:
    with pytest.raises(MlctlError) as caught:
        told(host)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "--insecure" in caught.value.hint
    for warned in (told(host, insecure=True), told(host, interactive=True)):
        assert warned is not None
        assert warned.startswith("Warning: ")


def test_exposure__token_without_tls__warns() -> None:
    assert "in the clear" in (told("0.0.0.0", authenticated=True) or "")
    assert told("0.0.0.0", authenticated=True, encrypted=True) == (
        "0.0.0.0 is reachable from other machines."
    )
