"""Who we are to a real NATS server: keys, credentials, certificates; and files that are no use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Place
from services.stream.transports.nats_client import Session
from tests.services.stream.contract import numbered, numbers, read, send
from tests.support.brokers import nats_server
from tests.support.certificates import issue_certificates
from tests.support.nats_accounts import Accounts, user_by_key, user_by_token


@pytest.mark.parametrize(
    ("known", "option"), [(user_by_key, "nkey_seed"), (user_by_token, "creds")]
)
def test_a_user_of_the_server_is_let_in(
    known: Callable[[Path], Accounts],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = known(tmp_path)
    with nats_server(tmp_path / "data", None, "--config", str(user.config)) as server:
        anybody = Place.parse(f"nats://{server.address}?create=yes#x")
        with pytest.raises(MlctlError) as caught:
            send(anybody, [])
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        ours = Place.parse(f"nats://{server.address}?create=yes&{option}={user.proof}#x")
        send(ours, numbered(0, 3))
        assert numbers(read(ours)) == [0, 1, 2]
        if option == "creds":
            monkeypatch.setenv("MLCTL_NATS_CREDS", str(user.proof))
            assert numbers(read(anybody)) == [0, 1, 2]


def test_a_server_that_asks_for_a_certificate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = issue_certificates(tmp_path)
    cert, key = made.server
    options = ("--tlsverify", "--tlscacert", made.ca, "--tlscert", cert, "--tlskey", key)
    with nats_server(tmp_path / "data", None, *map(str, options)) as server:
        nobody = f"nats://{server.address}?create=yes&tls_ca={made.ca}"
        with pytest.raises(MlctlError) as caught:
            send(Place.parse(f"{nobody}#x"), [])
        assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
        with pytest.raises(MlctlError, match="is not accepted: unable to get local issuer"):
            send(Place.parse(f"nats://{server.address}?tls=yes#x"), [])
        cert, key = made.caller
        ours = Place.parse(f"{nobody}&tls_cert={cert}&tls_key={key}#x")
        send(ours, numbered(0, 3))
        assert numbers(read(ours)) == [0, 1, 2]
    assert "eof_received" not in capfd.readouterr().err


def test_nobody_is_told_who_we_are_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_NATS_TOKEN", "hunter2")
    with nats_server(tmp_path / "data", None) as server:
        with pytest.raises(MlctlError, match="does not speak TLS") as caught:
            send(Place.parse(f"nats://{server.address}?create=yes&tls=yes#x"), [])
        assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE


def test_files_that_are_no_use_are_named(tmp_path: Path) -> None:
    made = issue_certificates(tmp_path)
    seed = user_by_key(tmp_path).proof
    for options, told in (
        ("creds=/nowhere", "creds names a file that cannot be read"),
        ("nkey_seed=/nowhere", "nkey_seed names a file that cannot be read"),
        ("tls_ca=/nowhere", "tls_ca names a file that cannot be read"),
        (f"creds={seed}", "creds names a file that holds nothing"),  # The library reads for ever.
        (f"nkey_seed={made.ca}", "nkey_seed names a file that holds nothing"),
        (f"tls_ca={seed}", "tls_ca, tls_cert and tls_key cannot be used"),
        (f"tls_cert={made.caller[0]}&tls_key={made.server[1]}", "cannot be used"),
        (f"tls_key={made.caller[1]}", "tls_key is a key without a certificate"),
    ):
        refuse(options, ErrorCode.INVALID_INPUT, told)


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    seed = user_by_key(tmp_path).proof
    refuse(f"nkey_seed={seed}", ErrorCode.RUNTIME_MISSING, "needs the package nkeys")


def refuse(options: str, code: ErrorCode, told: str) -> None:
    """Nothing is connected: the place is no use, whoever listens there."""
    session = Session(Place.parse(f"nats://127.0.0.1:9?{options}#x"))

    async def nothing(_client: object) -> None:
        raise AssertionError("it was connected")

    try:
        with pytest.raises(MlctlError, match=told) as caught:
            session.run(nothing)
    finally:
        session.close()
    assert caught.value.code is code
