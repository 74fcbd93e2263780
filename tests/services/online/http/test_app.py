from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import Batching
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.services.online.batching.scheduler import Priority, QueueFullError
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.metadata import EXTENSIONS
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.compression import deflate
from tests.support.bundles import make_lookup_bundle
from tests.support.listening import listening
from tests.support.models import replace_infer

Client = httpx.AsyncClient
INFER = "/v2/models/tiny/infer"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
LIMIT = 10_000


Use = Callable[[Client, ServedModel], Awaitable[None]]
Ask = Callable[[Use], CollectorRegistry]


@asynccontextmanager
async def open_client(host: ServedModel, way: str = "http") -> AsyncIterator[Client]:
    """A client of a server of `host`, or with the way "asgi" of its application alone."""
    inference = InferHandler(host)
    app = V2App(host, inference)
    if way == "asgi":
        transport = httpx.ASGITransport(app)
        async with Client(transport=transport, base_url="http://test") as client:
            yield client
        return
    async with (
        listening(app, infer_protocol(inference)) as server,
        Client(base_url=server.url) as client,
    ):
        yield client


@pytest.fixture
def ask(bundle: VerifiedBundle) -> Ask:
    """Runs its argument against a started host."""

    def run(use: Use) -> CollectorRegistry:
        registry = CollectorRegistry()

        async def main() -> None:
            host = ServedModel(bundle, ServerSettings(max_body_bytes=LIMIT), registry=registry)
            await host.start()
            async with open_client(host) as client:
                await use(client, host)
            await host.stop()

        asyncio.run(main())
        return registry

    return run


def counted(registry: CollectorRegistry, outcome: str) -> float | None:
    labels = {"model": "tiny", "protocol": "http", "outcome": outcome}
    return registry.get_sample_value("mlctl_requests_total", labels)


def test_app__health_and_metadata__are_answered(ask: Ask, bundle: VerifiedBundle) -> None:
    async def use(client: Client, host: ServedModel) -> None:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/v2/health/ready")).json() == {"live": True, "ready": True}
        for version in ("", f"/versions/{bundle.digest}"):
            told = await client.get(f"/v2/models/tiny{version}/ready")
            assert told.json() == {"name": "tiny", "ready": True}
        assert (await client.get("/v2")).json()["extensions"] == list(EXTENSIONS)
        for path in ("/v2/models/tiny", f"/v2/models/tiny/versions/{bundle.digest}"):
            assert (await client.get(path)).json() == {
                "name": "tiny",
                "versions": [bundle.digest],
                "platform": "onnxruntime_onnx",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
            }
        await host.stop()
        for path in ("/v2/health/ready", "/v2/models/tiny/ready"):
            assert (await client.get(path)).status_code == 503
        assert (await client.get("/v2/health/live")).status_code == 200
        refused = await client.post(INFER, json=REQUEST)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"

    ask(use)


def test_drain__server_is_draining__is_not_ready_but_answers(ask: Ask) -> None:
    async def use(client: Client, host: ServedModel) -> None:
        host.drain()
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert (await client.post(INFER, json=REQUEST)).status_code == 200

    ask(use)


def test_infer__with_or_without_version__is_answered(ask: Ask, bundle: VerifiedBundle) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        for path in (INFER, f"/v2/models/tiny/versions/{bundle.digest}/infer"):
            answer = await client.post(path, json=REQUEST)
            assert answer.status_code == 200
            assert answer.json()["model_version"] == bundle.digest
            assert answer.json()["outputs"][0]["data"] == [12, 14, 16, 18]
            assert answer.headers["server-timing"].startswith("queue;dur=")

    assert counted(ask(use), "ok") == 2


def test_infer__binary_tensors__are_read_and_returned(ask: Ask) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
        document = {
            "inputs": [{**tensor, "parameters": {"binary_data_size": 16}}],
            "parameters": {"binary_data_output": True},
        }
        head = json.dumps(document).encode()
        answer = await client.post(
            INFER,
            content=head + np.array([1, 2, 3, 4], "<f4").tobytes(),
            headers={"Inference-Header-Content-Length": str(len(head))},
        )
        size = int(answer.headers["inference-header-content-length"])
        assert np.frombuffer(answer.content[size:], "<f4").tolist() == [12, 14, 16, 18]

    ask(use)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/nothing", 404, "not_found"),
        ("POST", "/v2/nothing", 404, "not_found"),
        ("POST", "/v2/models/infer", 404, "model_not_found"),
        ("POST", "/v2/models/tiny", 405, "method_not_allowed"),
        ("GET", "/v2/models", 404, "not_found"),
        ("GET", "/v2/models/other", 404, "model_not_found"),
        ("GET", "/v2/models/tiny/versions/1", 404, "model_not_found"),
        ("GET", "/v2/models/tiny/what", 404, "not_found"),
        ("POST", "/v2/models/other/infer", 404, "model_not_found"),
        ("POST", "/v2/models/other/generate", 404, "model_not_found"),
        ("POST", "/v2/models/other/generate_stream", 404, "model_not_found"),
        ("GET", "/v2/models/other/trace/setting", 404, "model_not_found"),
        ("POST", "/v2/models/tiny/versions/1/infer", 404, "model_not_found"),
        ("POST", "/v2/models/tiny/a/b/infer", 404, "not_found"),
        ("GET", INFER, 405, "method_not_allowed"),
        ("GET", "/v2/repository/index", 405, "method_not_allowed"),
        ("POST", "/v2/repository/other", 404, "not_found"),
        ("POST", "/v2/repository/models/tiny/load", 403, "not_permitted"),
        ("POST", "/v2/repository/models/tiny/unload", 403, "not_permitted"),
        ("POST", "/v2/health/live", 405, "method_not_allowed"),
        ("POST", INFER, 400, "invalid_input"),
    ],
)
def test_errors__unknown_path_or_method__have_status_and_code(
    ask: Ask, method: str, path: str, status: int, code: str
) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["error"]
        assert ("allow" in answer.headers) == (status == 405)

    ask(use)


@pytest.mark.parametrize(
    ("path", "extension"),
    [
        ("/v2/systemsharedmemory/status", "system_shared_memory"),
        ("/v2/systemsharedmemory/region/r/register", "system_shared_memory"),
        ("/v2/cudasharedmemory/region/r/unregister", "cuda_shared_memory"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/tiny/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/models/tiny/generate", "generate"),
        ("/v2/models/tiny/versions/1/generate", "generate"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_errors__path_of_an_extension_that_is_not_served__names_it(
    ask: Ask, method: str, path: str, extension: str
) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert repr(extension) in answer.json()["error"]
        assert "GET /v2" in answer.json()["hint"]

    ask(use)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/csv"}, 415),
        ({"content-encoding": "br"}, 415),
        ({"content-encoding": "gzip"}, 400),
        ({"inference-header-content-length": "-1"}, 400),
        ({"inference-header-content-length": "9" * 30}, 400),
        ({"content-type": "Application/JSON; charset=utf-8"}, 200),
    ],
)
def test_headers__unsupported_or_invalid__are_rejected(
    ask: Ask, headers: dict[str, str], status: int
) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        content = json.dumps(REQUEST).encode()
        assert (await client.post(INFER, content=content, headers=headers)).status_code == status

    ask(use)


def test_body__declared_or_streamed_above_the_limit__is_rejected(ask: Ask) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b" " * 1000

    async def use(client: Client, _host: ServedModel) -> None:
        declared = await client.post(INFER, content=b" " * (LIMIT + 1))
        assert declared.status_code == 413
        streamed = await client.post(INFER, content=stream())
        assert streamed.status_code == 413
        assert streamed.json()["code"] == "payload_too_large"

    assert counted(ask(use), "payload_too_large") == 2


def test_queue__full__has_retry_after(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: Client, host: ServedModel) -> None:
        def full(*_arguments: Any) -> None:
            raise QueueFullError(8, 8, 2.3)

        replace_infer(monkeypatch, host, full)
        answer = await client.post(INFER, json=REQUEST)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "3"

    ask(use)


def test_error__unexpected__shows_no_internals(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: Client, host: ServedModel) -> None:
        def broken(*_arguments: Any) -> None:
            raise RuntimeError("/srv/secret")

        replace_infer(monkeypatch, host, broken)
        answer = await client.post(INFER, json=REQUEST)
        assert answer.status_code == 500
        assert "secret" not in answer.text

    assert counted(ask(use), "internal") == 1


def test_repository_index__valid_and_invalid_bodies__are_answered(
    ask: Ask, bundle: VerifiedBundle
) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        entry = {"name": "tiny", "version": bundle.digest, "state": "READY", "reason": ""}
        for content in (b"", b"{}", b'{"ready": true}'):
            found = await client.post("/v2/repository/index", content=content)
            assert found.json() == [entry]
        for content in (b'{"ready": 1}', b"[]"):
            wrong = await client.post("/v2/repository/index", content=content)
            assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")
        huge = await client.post("/v2/repository/index", content=b" " * (LIMIT + 1))
        assert huge.status_code == 413

    ask(use)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression__request_and_answer__are_inflated_and_deflated(ask: Ask, coding: str) -> None:
    rows = 400
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [1, 2, 3, 4] * rows}
    content = deflate(json.dumps({"inputs": [tensor]}).encode(), coding)

    async def use(client: Client, _host: ServedModel) -> None:
        headers = {"content-encoding": coding, "accept-encoding": coding}
        answer = await client.post(INFER, content=content, headers=headers)
        assert answer.json()["outputs"][0]["data"] == [12, 14, 16, 18] * rows
        assert answer.headers["content-encoding"] == coding
        assert answer.headers["vary"] == "accept-encoding"
        assert int(answer.headers["content-length"]) < 1000
        plain = await client.post(
            INFER, content=content, headers={**headers, "accept-encoding": "identity"}
        )
        assert plain.json() == answer.json()
        assert "content-encoding" not in plain.headers
        small = await client.post(INFER, json=REQUEST, headers={"accept-encoding": coding})
        assert "content-encoding" not in small.headers

    assert counted(ask(use), "ok") == 3


def test_compression__inflates_above_the_limit__is_rejected(ask: Ask) -> None:
    async def use(client: Client, _host: ServedModel) -> None:
        bomb = deflate(b" " * (LIMIT + 1), "gzip")
        answer = await client.post(INFER, content=bomb, headers={"content-encoding": "gzip"})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert "inflates" in answer.json()["error"]

    assert counted(ask(use), "payload_too_large") == 1


def test_infer__timeout_and_priority__reach_the_model(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, Priority]] = []

    async def use(client: Client, host: ServedModel) -> None:
        answers = host.infer

        def noting(inputs: Any, timeout: Any, priority: Any) -> Any:
            asked.append((timeout, priority))
            return answers(inputs, timeout, priority)

        replace_infer(monkeypatch, host, noting)
        parameters = {"timeout": 2_000_000, "priority": 1}
        assert (await client.post(INFER, json={**REQUEST, "parameters": parameters})).is_success

    ask(use)
    assert asked == [(2.0, Priority.HIGH)]


LIMITS: dict[str, Any] = {"max_queue_rows": 8, "max_length": 5, "max_body_bytes": LIMIT}


@pytest.mark.parametrize(
    ("of_bundle", "of_server"),
    [({}, LIMITS), (LIMITS, {}), (dict.fromkeys(LIMITS, 1_000_000), LIMITS)],
    ids=["server", "bundle", "server before bundle"],
)
async def test_input_limits__request_above_one__is_413_with_the_limit(
    tmp_path: Path, of_bundle: dict[str, Any], of_server: dict[str, Any]
) -> None:
    bundle = make_lookup_bundle(tmp_path / "bundle")
    batching = Batching.model_validate({**bundle.manifest.batching.model_dump(), **of_bundle})
    bundle = seal(bundle.root, bundle.manifest.model_copy(update={"batching": batching}))
    limits = ServerSettings(**of_server)

    def body(rows: int, length: int) -> dict[str, Any]:
        tensor = {"shape": [rows, length], "data": [0] * rows * length}
        ids, weights = ({"name": name, **tensor} for name in ("ids", "weights"))
        return {"inputs": [{**ids, "datatype": "INT64"}, {**weights, "datatype": "FP32"}]}

    host = ServedModel(bundle, limits, registry=CollectorRegistry())
    await host.start()
    path = "/v2/models/lookup/infer"
    async with open_client(host) as client:
        assert (await client.post(path, json=body(8, 5))).status_code == 200
        many = await client.post(path, json=body(9, 5))
        long = await client.post(path, json=body(1, 6))
        large = await client.post(path, content=b" " * (LIMIT + 1))
    await host.stop()
    assert [each.status_code for each in (many, long, large)] == [413] * 3
    assert [each.json()["error"] for each in (many, long, large)] == [
        "the request has 9 rows, the limit is 8",
        "tensor 'ids' has size 6 in dimension 1, the limit is 5",
        f"the body is larger than the limit of {LIMIT} bytes",
    ]
