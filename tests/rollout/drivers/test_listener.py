"""TLS at the edge of a deployment, with a real Envoy: who is heard, and over what."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from mlctl.rollout.domain.spec import DeploymentSettings, Ports, Slot
from mlctl.rollout.drivers.listener import tls_of, url_of
from tests.services.online.security.test_tls import require_tls_1_2
from tests.support.certificates import Certificates, issue_certificates
from tests.support.planes import Stage, stage
from tests.support.wait import wait_until

INFER = "/v2/models/tiny/infer"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
secure_channel: Any = grpc.secure_channel
channel_credentials: Any = grpc.ssl_channel_credentials
TOKEN = {"authorization": "Bearer 0123456789abcdef"}
SECOND = {"authorization": "Bearer fedcba9876543210"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def edge(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """An Envoy that takes only callers with a certificate, and one replica behind it."""
    folder = tmp_path_factory.mktemp("envoy")
    pair = tuple(str(shutil.copy(path, folder)) for path in certificates.server)
    with stage(folder, (*pair, str(certificates.ca))) as made:
        made.staff(Slot.BLUE, 1, "?trace=1")
        yield made


def url(stage: Stage) -> str:
    return f"https://127.0.0.1:{stage.ports.listen}"


@pytest.mark.slow
def test_tls__client_with_a_certificate__is_answered(
    edge: Stage, certificates: Certificates
) -> None:
    context = certificates.context(certificates.caller)
    with httpx.Client(base_url=url(edge), verify=context, trust_env=False) as client:
        answer = client.post(INFER, content=b"{}", headers=TOKEN)
    assert answer.json()["model_version"][:2] == "aa"
    for offered in (["h2"], ["http/1.1"], ["h2", "http/1.1"]):
        assert agreed(edge, certificates, offered) == offered[0]


@pytest.mark.slow
def test_tls__grpc_on_the_same_port__is_answered(edge: Stage, certificates: Certificates) -> None:
    chain, key = (path.read_bytes() for path in certificates.caller)
    credentials = channel_credentials(certificates.ca.read_bytes(), key, chain)
    with secure_channel(f"localhost:{edge.ports.listen}", credentials) as channel:
        _, call = channel.unary_unary(METHOD).with_call(
            b"", timeout=20, metadata=tuple(TOKEN.items())
        )
    assert dict(call.trailing_metadata())["digest"].startswith("aa")


@pytest.mark.slow
def test_tls__token__reaches_the_replica(edge: Stage, certificates: Certificates) -> None:
    log, context = edge.replicas[Slot.BLUE][0].log, certificates.context(certificates.caller)
    told = f"authorization {SECOND['authorization']}"
    assert told not in log.read_text()
    with httpx.Client(base_url=url(edge), verify=context, trust_env=False) as client:
        assert client.post(INFER, content=b"{}", headers=SECOND).status_code == 200
    wait_until(lambda: told in log.read_text(), what="the replica was shown the token")


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["nothing", "a stranger's", "plain text"])
def test_tls__no_or_unknown_certificate__is_rejected(
    edge: Stage, certificates: Certificates, shown: str
) -> None:
    pair = certificates.stranger if shown == "a stranger's" else None
    base = url(edge).replace("https", "http") if shown == "plain text" else url(edge)
    with httpx.Client(verify=certificates.context(pair), trust_env=False) as client:
        try:
            status = client.post(base + INFER, content=b"{}").status_code
        except httpx.TransportError:
            return
    assert (shown, status) == ("plain text", 400), "only a refusal in plain text may come"


@pytest.mark.slow
def test_tls__old_version_or_weak_cipher__is_rejected(
    edge: Stage, certificates: Certificates
) -> None:
    require_tls_1_2(edge.ports.listen, certificates)
    context = certificates.context(certificates.caller)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-GCM-SHA256:AES256-SHA")
    with pytest.raises(OSError, match=r"(?i)alert|handshake|reset"):
        connect(edge, context)


@pytest.mark.slow
def test_tls__renewed_certificate__is_used(edge: Stage, certificates: Certificates) -> None:
    before = serial(edge, certificates)
    for new, old in zip(certificates.renewed[::-1], certificates.server[::-1], strict=True):
        fresh = edge.directory / f"{old.name}.new"
        shutil.copy(new, fresh)
        fresh.replace(edge.directory / old.name)
    wait_until(lambda: serial(edge, certificates) != before, what="the new certificate is shown")


def test_url_of__each_setting__names_the_scheme() -> None:
    plain, tls = DeploymentSettings(), DeploymentSettings(tls=("c.pem", "k.pem"))
    assert (tls_of(plain), url_of(Ports(1, 2), plain)) == (None, "http://127.0.0.1:1")
    assert url_of(Ports(1, 2, "::1"), tls) == "https://[::1]:1"
    found = tls_of(tls)
    assert found is not None
    assert (found.key, found.client_ca) == (Path("k.pem"), None)


def connect(stage: Stage, context: ssl.SSLContext) -> dict[str, Any]:
    """The certificate and the protocol of a connection that is used once."""
    with (
        socket.create_connection(("127.0.0.1", stage.ports.listen), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        return {"alpn": secured.selected_alpn_protocol(), **(secured.getpeercert() or {})}


def agreed(stage: Stage, certificates: Certificates, offered: list[str]) -> object:
    context = certificates.context(certificates.caller)
    context.set_alpn_protocols(offered)
    return connect(stage, context)["alpn"]


def serial(stage: Stage, certificates: Certificates) -> object:
    context = certificates.context(certificates.caller)
    context.set_alpn_protocols(["http/1.1"])
    return connect(stage, context)["serialNumber"]
