"""Callers with and without a token, at every front door of one host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.server.seam import Front, gated
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.services.online.grpc.test_server import details_of, infer, refused
from tests.support.listening import Listening, listening

TOKEN = "the-token-0123456789abcdef"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
METADATA = (("authorization", f"Bearer {TOKEN}"),)
INFER = "/v2/models/tiny/infer"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
Use = Callable[[httpx.AsyncClient, Listening], Awaitable[None]]


class Gated:
    """A host that asks for a token, and what it counted."""

    def __init__(self, bundle: VerifiedBundle, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        token = None if "token_file" in settings else SecretStr(TOKEN)
        chosen = ServerSettings(token=token, max_body_bytes=100_000, **settings)
        self.host = ServedModel(bundle, chosen, registry=self.registry)

    def run(self, use: Use) -> None:
        async def main() -> None:
            await self.host.start()
            async with self._serve() as server, httpx.AsyncClient(base_url=server.url) as client:
                await use(client, server)
            await self.host.stop()

        asyncio.run(main())

    def counted(self, outcome: str, protocol: str = "http", client: str = "unnamed") -> float:
        self.host.publish()
        client = "" if outcome == "unauthenticated" else client
        labels = {"model": "tiny", "protocol": protocol, "outcome": outcome, "client": client}
        return self.registry.get_sample_value("mlctl_requests_total", labels) or 0.0

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[Listening]:
        inference = InferHandler(self.host)
        front = Front(self.host, [inference], V2App(self.host, inference))
        app = gated(front, inference, self.host)
        async with listening(app, infer_protocol(inference)) as server:
            yield server


@pytest.fixture
def gate(shared_bundle: VerifiedBundle) -> Gated:
    return Gated(shared_bundle)


def test_token__valid_or_not__decides_access(gate: Gated) -> None:
    async def use(client: httpx.AsyncClient, _server: Listening) -> None:
        answered = await client.post(INFER, json=REQUEST, headers=AUTHORIZED)
        assert answered.json()["outputs"][0]["data"] == [12, 14, 16, 18]
        for headers in ({}, {"authorization": "Bearer other-token-0123456"}):
            sent = {**headers, "x-request-id": "mine"}
            found = await client.post(INFER, json=REQUEST, headers=sent)
            assert found.status_code == 401
            assert found.headers["www-authenticate"] == "Bearer"
            assert found.headers["x-request-id"] == "mine"
            assert found.json()["code"] == "unauthenticated"
            assert "other-token" not in found.text

    gate.run(use)
    assert (gate.counted("ok"), gate.counted("unauthenticated")) == (1, 2)


@pytest.mark.parametrize("path", [INFER, "/v2/models/tiny"])
def test_token__two_different_ones__are_rejected(gate: Gated, path: str) -> None:
    async def use(client: httpx.AsyncClient, _server: Listening) -> None:
        right, wrong = [(*AUTHORIZED.items(),)[0], ("authorization", "Bearer other-token-0123456")]
        method = "POST" if path == INFER else "GET"
        content = json.dumps(REQUEST) if path == INFER else None
        for headers, status in (([right, wrong], 401), ([wrong, right], 401), ([right] * 2, 200)):
            found = await client.request(method, path, headers=headers, content=content)
            assert found.status_code == status

    gate.run(use)


def test_token__missing__only_probes_are_answered(gate: Gated) -> None:
    async def use(client: httpx.AsyncClient, _server: Listening) -> None:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 200
        # What exists and what does not look the same from outside.
        paths = ("/v2", "/v2/models/tiny", "/v2/models/other", "/v2/models/tiny/ready")
        for path in (*paths, "/v2/health/live/", "/v2/health/../models/tiny", "/metrics", "/"):
            assert (await client.get(path)).status_code == 401
        for path in ("/v2/repository/index", "/v2/models/other/infer", f"/{INFER}"):
            assert (await client.post(path)).status_code == 401
        assert (await client.get("/v2/models/tiny", headers=AUTHORIZED)).status_code == 200

    gate.run(use)


@pytest.mark.parametrize("framing", ["content-length: 90000", "transfer-encoding: chunked"])
def test_token__missing_and_body_is_still_sent__is_answered_401(gate: Gated, framing: str) -> None:
    """Before its body: the answer is there though not one byte of the body was sent."""

    async def use(_client: httpx.AsyncClient, server: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"POST {INFER} HTTP/1.1\r\nhost: test\r\n{framing}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["code"] == "unauthenticated"
        # Then all of the body; the connection serves the next request as ever.
        body = b"x" * 90_000 if "length" in framing else b"5\r\nhello\r\n0\r\n\r\n"
        writer.write(body)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: test\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()

    gate.run(use)


def test_token__missing_with_expect_continue__gets_no_100(gate: Gated) -> None:
    async def use(_client: httpx.AsyncClient, server: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST {INFER} HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n"
        writer.write(f"{head}content-length: 90000\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"100 Continue" not in answer
        writer.close()
        await writer.wait_closed()

    gate.run(use)


def infer_call(channel: Any) -> Any:
    """Return the method ModelInfer of a channel."""
    method = methods()["ModelInfer"]
    return channel.unary_unary(
        f"/{SERVICE}/ModelInfer",
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def test_token__grpc_metadata__decides_access(shared_bundle: VerifiedBundle) -> None:
    gate = Gated(shared_bundle)
    wrong = (("authorization", "Bearer other-token-0123456"),)

    async def use(channel: Any) -> None:
        call = infer_call(channel)
        for right in (METADATA, METADATA * 2):
            assert (await call(infer(), metadata=right)).model_name == "tiny"
        for shown in ((), wrong, METADATA + wrong, wrong + METADATA):
            error = await refused(call(infer(), metadata=shown))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert dict(error.trailing_metadata() or ())["mlctl-code"] == "unauthenticated"
            assert [type(detail) for detail in details_of(error)] == [ErrorInfo]
        unknown = channel.unary_unary("/other.Service/Method")
        assert (await refused(unknown(b""))).code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(_with_grpc(gate.host, use))
    assert (gate.counted("ok", "grpc"), gate.counted("unauthenticated", "grpc")) == (2, 5)


def test_token__missing_over_grpc__only_probes_are_answered(shared_bundle: VerifiedBundle) -> None:
    async def use(channel: Any) -> None:
        health = HealthStub(channel)  # type: ignore[no-untyped-call]
        found = await health.Check(HealthCheckRequest(service=SERVICE))
        assert found.status == HealthCheckResponse.SERVING
        for name in ("ServerLive", "ServerReady"):
            method = methods()[name]
            await channel.unary_unary(f"/{SERVICE}/{name}")(method.request().SerializeToString())
        reflection = ServerReflectionStub(channel)  # type: ignore[no-untyped-call]
        asked = ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            # Nothing is asked: this client tells a refusal that overtakes what it sends as its
            # own failure.
            await reflection.ServerReflectionInfo().read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call = reflection.ServerReflectionInfo(iter([asked]), metadata=METADATA)
        assert SERVICE in str(await call.read())
        call.cancel()

    asyncio.run(_with_grpc(Gated(shared_bundle).host, use))


ROWS = {"x": [[1, 2, 3, 4]]}
STREAM = "/v2/models/tiny/infer_stream"


def with_names(tmp_path: Path, *clients: str) -> Path:
    path = tmp_path / "tokens"
    path.write_text("".join(f"{name}: {token_of(name)}\n" for name in clients))
    return path


def token_of(client: str) -> str:
    return f"the-token-of-{client}-0123456789"


def shown(client: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(client)}"}


def test_limit__requests_of_a_named_client__beyond_it_are_429_and_counted_by_client(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    """At every endpoint of models; what describes them is not limited."""
    calls = {
        "plain": (INFER, REQUEST),
        "odd": ("/v2/models/t%69ny/infer", REQUEST),
        "stream": (STREAM, REQUEST),
        "predict": ("/predict", ROWS),
        "sagemaker": ("/invocations", ROWS),
    }
    file = with_names(tmp_path, "other", *calls)
    gate = Gated(shared_bundle, token_file=file, max_client_rps=0.001)

    async def use(client: httpx.AsyncClient, _server: Listening) -> None:
        for name, (path, body) in calls.items():
            for _ in range(3):
                described = await client.get("/v2/models/tiny", headers=shown(name))
                assert described.status_code == 200
            assert (await client.post(path, json=body, headers=shown(name))).status_code == 200
            found = await client.post(path, json=body, headers=shown(name))
            assert (found.status_code, found.json()["code"]) == (429, "rate_limit_exceeded"), name
            assert 990 < int(found.headers["retry-after"]) <= 1000
            assert found.headers["x-envoy-upstream-canary"] == "true"
            assert f"client '{name}' sends more than 0.001 requests" in found.json()["error"]
            wrong = await client.post(path, json=body, headers=shown(f"not-{name}"))
            assert wrong.status_code == 401
        assert (await client.post(INFER, json=REQUEST, headers=shown("other"))).status_code == 200

    gate.run(use)
    for name in calls:
        protocol = "predict" if name in {"predict", "sagemaker"} else "http"
        for outcome in ("ok", "rate_limit_exceeded"):
            assert gate.counted(outcome, protocol, name) == 1, (name, outcome)
    assert gate.counted("unauthenticated") == len(calls)
    assert gate.counted("ok", client="other") == 1


@pytest.mark.parametrize("rows", [1, 2000])
def test_limit__over_grpc__is_resource_exhausted_with_a_retry_time(
    shared_bundle: VerifiedBundle, tmp_path: Path, rows: int
) -> None:
    """Of a message that arrives whole, and of one in many frames."""
    file = with_names(tmp_path, "shop", "other")
    gate = Gated(shared_bundle, token_file=file, max_client_rps=0.001)

    async def use(channel: Any) -> None:
        call = infer_call(channel)
        message = infer(data=bytes(16 * rows))
        message.inputs[0].shape[0] = rows
        await call(message, metadata=[*shown("shop").items()])
        error = await refused(call(message, metadata=[*shown("shop").items()]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(error.trailing_metadata() or ())
        assert trailers["mlctl-code"] == "rate_limit_exceeded"
        assert 990 < int(str(trailers["retry-after"])) <= 1000
        assert [type(detail) for detail in details_of(error)] == [ErrorInfo, RetryInfo]
        await call(message, metadata=[*shown("other").items()])

    asyncio.run(_with_grpc(gate.host, use))
    assert gate.counted("ok", "grpc", "shop") == gate.counted("ok", "grpc", "other") == 1
    assert gate.counted("rate_limit_exceeded", "grpc", "shop") == 1


def test_limit__requests_of_a_grpc_stream__count_each(
    shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    gate = Gated(shared_bundle, token_file=with_names(tmp_path, "shop"), max_client_rps=2.5)

    async def use(channel: Any) -> None:
        method = methods()["ModelStreamInfer"]
        call = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        stream = call(iter([infer()] * 3), metadata=[*shown("shop").items()])
        errors = [answer.error_message async for answer in stream]
        assert errors[:2] == ["", ""]
        assert "client 'shop' sends more than 2.5 requests" in errors[2]

    asyncio.run(_with_grpc(gate.host, use))
    assert gate.counted("ok", "grpc", "shop") == 2
    assert gate.counted("rate_limit_exceeded", "grpc", "shop") == 1


async def _with_grpc(host: ServedModel, use: Callable[[Any], Awaitable[None]]) -> None:
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        await use(channel)
    await server.stop(1)
    await host.stop()
