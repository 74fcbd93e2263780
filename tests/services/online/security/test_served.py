"""A real `bentoml serve` with tokens, and mutual TLS on both ports."""

from __future__ import annotations

import importlib
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mlctl.bento.packaging import BuiltBento
from mlctl.rollout.domain.interfaces import ProcessState
from mlctl.rollout.domain.spec import DeploymentSettings as RolloutSettings
from mlctl.rollout.domain.spec import Revision, Slot
from mlctl.rollout.drivers.local.launcher import LocalLauncher
from tests.services.online.security.test_tls import require_tls_1_2
from tests.support.certificates import Certificates
from tests.support.serving import Server, launch, running
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
ONE, TWO = (f"{name}-0123456789abcdef" for name in ("one", "two"))
X = np.array([[1, 2, 3, 4]], dtype=np.float32)
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X[0].tolist()}
triton_grpc: Any = tritonclient.grpc
triton_http: Any = tritonclient.http


@dataclass(frozen=True, slots=True)
class Secured(Server):
    """A server that takes only callers with a certificate."""

    context: ssl.SSLContext
    tokens: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, verify=self.context, headers=headers, timeout=20)


@pytest.fixture(scope="module")
def secured(
    built: BuiltBento,
    store_home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    certificates: Certificates,
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    tokens = folder / "tokens"
    tokens.write_text(f"shop: {ONE}")
    environment = {
        "MLCTL_TOKEN_FILE": str(tokens),
        "MLCTL_ACCESS_LOG": str(folder / "access.log"),
        "MLCTL_TLS_CERT": str(certificates.server[0]),
        "MLCTL_TLS_KEY": str(certificates.server[1]),
        "MLCTL_TLS_CLIENT_CA": str(certificates.ca),
    }
    started = launch(
        built.tag, folder / "log", cwd=folder, bento_home=store_home, environment=environment
    )
    context = certificates.context(certificates.caller)
    parts = (started.port, started.grpc_port, started.process, started.log)
    with running(Secured(*parts, context, tokens)) as ready:
        assert isinstance(ready, Secured)
        yield ready


def test_token__each_endpoint__requires_it(secured: Secured) -> None:
    v2 = {"inputs": [TENSOR]}
    with secured.client() as stranger, secured.client(ONE) as caller:
        for path in ("/livez", "/readyz", "/v2/health/ready"):
            assert stranger.get(path).status_code == 200
        for path in ("/", "/docs.json", "/schema.json", "/metrics", "/v2", "/v2/models/tiny"):
            found = stranger.get(path)
            assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
        for path, body in (("/v2/models/tiny/infer", v2), ("/predict", {"x": X.tolist()})):
            assert stranger.post(path, json=body).json()["code"] == "unauthenticated"
            assert caller.post(path, json=body).status_code == 200
        assert 'outcome="unauthenticated"' in caller.get("/metrics").text


def test_tls__tritonclient_with_a_token__is_answered(
    secured: Secured, certificates: Certificates
) -> None:
    headers = {"authorization": f"Bearer {ONE}"}
    chain, key = certificates.caller
    client = triton_http.InferenceServerClient(
        f"localhost:{secured.port}",
        ssl=True,
        ssl_context_factory=partial(_gevent_context, certificates),
    )
    tensor = triton_http.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(X)
    answer = client.infer("tiny", [tensor], headers=dict(headers)).as_numpy("y")
    assert answer.tolist() == [[12, 14, 16, 18]]
    client.close()

    client = triton_grpc.InferenceServerClient(
        f"localhost:{secured.grpc_port}",
        ssl=True,
        root_certificates=str(certificates.ca),
        private_key=str(key),
        certificate_chain=str(chain),
    )
    tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(X)
    assert client.is_server_live()
    found = client.infer("tiny", [tensor], headers=dict(headers)).as_numpy("y")
    assert found.tolist() == answer.tolist()
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        client.infer("tiny", [tensor])
    client.close()


def _gevent_context(certificates: Certificates) -> Any:
    # The client's own kind of sockets, which Python's contexts cannot wrap.
    context = importlib.import_module("gevent.ssl").SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates.ca)
    context.load_cert_chain(*certificates.caller)
    return context


@pytest.mark.parametrize("shown", [None, "stranger"])
def test_tls__no_or_unknown_certificate__is_rejected(
    secured: Secured, certificates: Certificates, shown: str | None
) -> None:
    context = certificates.context(None if shown is None else certificates.stranger)
    with (
        httpx.Client(base_url=secured.url, verify=context) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get("/livez")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{secured.port}/livez")
    require_tls_1_2(secured.port, certificates)


def test_tls__large_bodies_and_early_rejections__are_answered(secured: Secured) -> None:
    """Our protocol's ways to end a request, where TLS is between it and the socket."""
    rows = 20_000
    large = {**TENSOR, "shape": [rows, 4], "data": [1.0] * (4 * rows)}
    with secured.client() as stranger, secured.client(ONE) as caller:
        for _ in range(3):
            refused = stranger.post("/v2/models/tiny/infer", json={"inputs": [large]})
            assert refused.json()["code"] == "unauthenticated"
            found = caller.post("/v2/models/tiny/infer", json={"inputs": [TENSOR]})
            assert found.json()["outputs"][0]["data"] == [12, 14, 16, 18]


def test_token__file_changes__rotates_without_a_restart(secured: Secured) -> None:
    def takes(token: str) -> bool:
        with secured.client(token) as client:
            return client.get("/v2").status_code == 200

    assert takes(ONE)
    assert not takes(TWO)
    secured.tokens.write_text(f"{TWO}\nshop: {ONE}\n")
    wait_until(lambda: takes(TWO), what="the new token opens")
    assert takes(ONE)
    secured.tokens.write_text(f"shop: {ONE}")
    wait_until(lambda: not takes(TWO), what="the token that was taken out does not open")


def test_token__of_a_named_client__is_in_metrics_and_log_by_name(secured: Secured) -> None:
    log = secured.tokens.parent / "access.log"
    with secured.client() as stranger, secured.client(ONE) as caller:
        for client in (stranger, caller):
            client.post("/v2/models/tiny/infer", json={"inputs": [TENSOR]})
        metrics = caller.get("/metrics").text
    sample = re.compile(r'^mlctl_requests_total{client="(.*?)",.*outcome="(.*?)"', re.MULTILINE)
    counted = sample.findall(metrics)
    assert {("shop", "ok"), ("", "unauthenticated")} <= {*counted}
    assert ("", "ok") not in counted
    wait_until(lambda: '"client":"shop"' in log.read_text(), what="the line of the request")
    assert ONE not in log.read_text() + metrics


def test_token__server_log__contains_none(secured: Secured) -> None:
    log = secured.log.read_text()
    assert "tiny" in log
    for token in (ONE, TWO):
        assert token not in log


def test_launcher__token_and_tls_set__probes_with_the_token_only(
    built: BuiltBento, store_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").write_text(ONE)
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    monkeypatch.setenv("MLCTL_TOKEN_FILE", str(tmp_path / "tokens"))
    monkeypatch.setenv("MLCTL_TLS_CERT", str(tmp_path / "none.pem"))
    launcher = LocalLauncher(tmp_path, RolloutSettings())
    served = launcher.start(
        Slot.BLUE, Revision(built.tag, built.digest, "tiny-optimized", "1", "models:/tiny/1")
    )
    try:
        wait_until(lambda: launcher.probe(served) is not ProcessState.STARTING, what="it is ready")
        assert launcher.probe(served) is ProcessState.READY, Path(served.log).read_text()
        url = f"http://127.0.0.1:{served.endpoint.http}/v2/models/tiny"
        assert httpx.get(url).status_code == 401
    finally:
        launcher.stop(served)
        wait_until(lambda: launcher.probe(served) is ProcessState.DEAD, what="it ended")
        launcher.close()
