from __future__ import annotations

import hmac
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.access import Access

ONE, TWO, THREE = (f"{name}-0123456789abcdef" for name in ("one", "two", "three"))


def shown(token: str, scheme: str = "Bearer") -> bytes:
    return f"{scheme} {token}".encode()


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_access__no_token_set__allows_all() -> None:
    access = Access()
    assert not access.required
    assert access.allows(None)
    assert access.allows(b"anything")
    assert access.client_of(None) == ""


def test_access__valid_or_invalid_token__decides() -> None:
    access = Access(ONE)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert access.allows(shown(ONE, scheme))
    for wrong in (None, b"", b"Bearer", b"Bearer ", ONE.encode(), shown(ONE, "Basic")):
        assert not access.allows(wrong)
    for wrong in (shown(TWO), shown(ONE[:-1]), shown(ONE + "0"), b"Bearer  " + ONE.encode()):
        assert not access.allows(wrong)


@given(st.binary(max_size=80))
def test_access__any_other_header__is_rejected(header: bytes) -> None:
    assert not Access(ONE).allows(header)


def test_client_of__wrong_token__message_has_no_token() -> None:
    with pytest.raises(MlctlError) as caught:
        Access(ONE).client_of(shown(TWO))
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert (caught.value.spec.http, caught.value.spec.grpc) == (401, "UNAUTHENTICATED")
    assert TWO not in str(caught.value.as_dict())


def test_access__several_tokens__compares_each_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{ONE}\n{TWO}\n{THREE}")
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counted(given: bytes, known: bytes) -> bool:
        assert len(given) == len(known) == 32
        compared.append(known)
        return real(given, known)

    monkeypatch.setattr("mlctl.services.access.compare_digest", counted)
    access = Access(file=path)
    for token in (ONE, THREE, "wrong-token-0123456789"):
        compared.clear()
        access.allows(shown(token))
        assert len(set(compared)) == len(compared) == 3


def test_token_file__changes__is_read_again(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens", Hand()
    path.write_text(ONE)
    access = Access(file=path, clock=clock)
    path.write_text(f"{TWO}\n{ONE}")
    assert not access.allows(shown(TWO))
    clock.now += 1
    assert access.allows(shown(TWO))
    assert access.allows(shown(ONE))
    # As an orchestrator does it: another file takes the name.
    (tmp_path / "next").write_text(TWO)
    (tmp_path / "next").replace(path)
    clock.now += 1
    assert access.allows(shown(TWO))
    assert not access.allows(shown(ONE))


@pytest.mark.parametrize("slip", [None, "", "no token!"])
def test_token_file__removed_or_invalid__keeps_the_earlier_tokens(
    tmp_path: Path, slip: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "tokens", Hand()
    path.write_text(ONE)
    access = Access(file=path, clock=clock)
    path.unlink()
    if slip is not None:
        path.write_text(slip)
    with caplog.at_level(logging.INFO, "mlctl.access"):
        for _ in range(3):
            clock.now += 1
            assert access.allows(shown(ONE))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        path.write_text(TWO)
        clock.now += 1
        assert access.allows(shown(TWO))
    assert not access.allows(shown(ONE))
    assert not any(token in caplog.text for token in (ONE, TWO, "no token!"))


def test_access__two_sources_or_short_token__is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(ONE)
    with pytest.raises(MlctlError, match="MLCTL_TOKEN and MLCTL_TOKEN_FILE are both set"):
        Access(ONE, path)
    with pytest.raises(MlctlError, match="line 1 of MLCTL_TOKEN"):
        Access("short")
    with pytest.raises(MlctlError, match="cannot be read"):
        Access(file=tmp_path / "none")


def test_client_of__file_with_names__is_the_tokens_client(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens", Hand()
    path.write_text(f"shop: {ONE}\n{TWO}")
    access = Access(file=path, clock=clock)
    assert (access.client_of(shown(ONE)), access.client_of(shown(TWO))) == ("shop", "unnamed")
    path.write_text(f"search: {ONE}\nshop: {TWO}\nshop: {THREE}")
    clock.now += 1
    found = [access.client_of(shown(token, "bearer")) for token in (ONE, TWO, THREE)]
    assert found == ["search", "shop", "shop"]


def test_charge__beyond_the_limit__says_when_the_next_is_admitted(tmp_path: Path) -> None:
    """All tokens of a client share its limit, which stays as it is when the file changes."""
    path, clock = tmp_path / "tokens", Hand()
    path.write_text(f"shop: {ONE}\nsearch: {TWO}")
    access = Access(file=path, max_rps=4, clock=clock)
    for _ in range(4):
        access.charge("shop")
    with pytest.raises(MlctlError, match="client 'shop' sends more than 4 requests") as caught:
        access.charge("shop")
    assert caught.value.code is ErrorCode.RATE_LIMIT_EXCEEDED
    assert caught.value.retry_after == pytest.approx(0.25)
    access.charge("search")
    path.write_text(f"search: {TWO}\nshop: {THREE}\nshop: {ONE}\nother: {ONE}9")
    clock.now += 1
    for client in ("shop", "other"):
        assert access.client_of(shown(THREE)) == "shop"
        for _ in range(4):
            access.charge(client)
        with pytest.raises(MlctlError):
            access.charge(client)


def test_access__limit_without_tokens__is_rejected() -> None:
    with pytest.raises(MlctlError, match="MLCTL_MAX_CLIENT_RPS is set, but no tokens"):
        Access(max_rps=1.0)
    Access(ONE).charge("unnamed")
