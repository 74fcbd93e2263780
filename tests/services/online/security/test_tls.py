from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.tls import CIPHERS, checked_files
from mlctl.services.online.grpc.http2.connection import Times
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.connection.accept_loop import AcceptingLoop
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.declared import ssl_options
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.certificates import Certificates
from tests.support.wait import PATIENCE_SECONDS

secure_channel: Any = grpc.aio.secure_channel
Pair = tuple[Path, Path] | None


def test_checked_files__no_files__is_none() -> None:
    assert checked_files(None, None, None) is None


def test_checked_files__certificate_without_key__is_rejected(certificates: Certificates) -> None:
    cert, key = certificates.server
    for given in ((cert, None, None), (None, key, None), (None, None, certificates.ca)):
        with pytest.raises(MlctlError, match="both a certificate and its key"):
            checked_files(*given)


def test_checked_files__unusable_file__is_named(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = certificates.server
    none, text = tmp_path / "none.pem", tmp_path / "text.pem"
    text.write_text("no PEM at all")
    cases: list[tuple[tuple[Path, Path, Path | None], Path]] = [
        ((none, key, None), none),
        ((cert, none, None), none),
        ((cert, key, none), none),
        ((tmp_path, key, None), tmp_path),
        ((text, key, None), text),
        ((cert, text, None), text),
        ((cert, key, text), text),
        ((cert, certificates.caller[1], None), cert),
    ]
    for given, named in cases:
        with pytest.raises(MlctlError, match=str(named)) as caught:
            checked_files(*given)
        assert caught.value.code is ErrorCode.INVALID_INPUT
        assert "_ssl.c" not in caught.value.message


def test_checked_files__key_with_a_password__is_rejected_without_a_prompt(
    certificates: Certificates, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    cert, key = certificates.server
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(MlctlError, match=str(locked)):
        checked_files(cert, locked, None)


def test_context__protocols_and_ciphers__are_modern_only(certificates: Certificates) -> None:
    context = certificates.tls().context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    assert certificates.tls(mutual=True).context().verify_mode is ssl.CERT_REQUIRED
    for cipher in context.get_ciphers():
        assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith("ECDHE-")
    assert ssl_options(certificates.tls(mutual=True)) == {
        "enabled": True,
        "certfile": str(certificates.server[0]),
        "keyfile": str(certificates.server[1]),
        "ca_certs": str(certificates.ca),
        "cert_reqs": 2,
        "ciphers": CIPHERS,
    }


@pytest.mark.parametrize(
    ("mutual", "shows", "answered"),
    [
        (False, lambda _c: None, True),
        (True, lambda c: c.caller, True),
        (True, lambda _c: None, False),
        (True, lambda c: c.stranger, False),
    ],
)
def test_grpc_tls__each_certificate__decides_access(
    shared_bundle: VerifiedBundle,
    certificates: Certificates,
    mutual: bool,
    shows: Callable[[Certificates], Pair],
    answered: bool,
) -> None:
    pair = shows(certificates)
    key, chain = (None, None) if pair is None else (pair[1].read_bytes(), pair[0].read_bytes())

    async def main() -> None:
        host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
        server = GrpcServer(host, "127.0.0.1", 0, certificates.tls(mutual=mutual))
        await server.start()
        make: Any = grpc.ssl_channel_credentials
        credentials = make(certificates.ca.read_bytes(), key, chain)
        async with secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive")
            live = call(methods()["ServerLive"].request().SerializeToString(), timeout=20)
            if answered:
                await live
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await live
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.to_thread(require_tls_1_2, server.port, certificates)
        await server.stop(1)

    # As in production. asyncio's own server forgets a handshake that is under way as it closes.
    with asyncio.Runner(loop_factory=AcceptingLoop) as runner:
        runner.run(main())


async def test_grpc_tls__no_handshake__is_disconnected(
    shared_bundle: VerifiedBundle, certificates: Certificates
) -> None:
    """Such a connection counts nowhere yet."""

    host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    server = GrpcServer(host, "127.0.0.1", 0, certificates.tls())
    server._server._times = Times(preface=0.2)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
    writer.close()
    await server.stop(1)


def test_grpc_tls__client_never_ends_its_connection__is_disconnected(
    shared_bundle: VerifiedBundle, certificates: Certificates
) -> None:
    """TLS waits for the client's end of it, and the loop would close before."""

    def connect(port: int) -> ssl.SSLSocket:
        context = certificates.context()
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        return context.wrap_socket(plain, server_hostname="localhost")

    async def main() -> None:
        host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
        server = GrpcServer(host, "127.0.0.1", 0, certificates.tls())
        await server.start()
        with await asyncio.to_thread(connect, server.port):
            while not server._server._connections:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            server._server._times = Times(farewell=0.1)
            await server.stop(0.1)
            assert not server._server._connections

    with asyncio.Runner(loop_factory=AcceptingLoop) as runner:
        runner.run(main())


def test_grpc_tls__handshake_during_the_drain__is_answered(
    shared_bundle: VerifiedBundle, certificates: Certificates
) -> None:
    def ask(port: int) -> Any:
        bare: Any = grpc  # its functions have no types
        credentials = bare.ssl_channel_credentials(certificates.ca.read_bytes())
        with bare.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            live = channel.unary_unary(f"/{SERVICE}/ServerLive")
            return methods()["ServerLive"].response.FromString(live(b"", timeout=PATIENCE_SECONDS))

    async def main() -> None:
        host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
        server = GrpcServer(host, "127.0.0.1", 0, certificates.tls())
        await server.start()
        answer = asyncio.create_task(asyncio.to_thread(ask, server.port))
        await asyncio.sleep(0)  # it has begun
        ((listener, _),) = server._server._listeners
        # Not by the loop, which would let it in: the kernel has the client, and nobody else.
        assert select.select([listener], [], [], PATIENCE_SECONDS)[0]
        await server.drain(PATIENCE_SECONDS)
        assert (await answer).live
        await server.stop(1)

    with asyncio.Runner(loop_factory=AcceptingLoop) as runner:
        runner.run(main())


def require_tls_1_2(port: int, certificates: Certificates) -> None:
    """The server itself ends a handshake of TLS 1.1."""
    context = certificates.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.options &= ~ssl.OP_NO_TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", port), 20) as connection,
        pytest.raises((ssl.SSLError, OSError), match=r"(?i)protocol.version|reset|EOF"),
    ):
        context.wrap_socket(connection, server_hostname="localhost")
