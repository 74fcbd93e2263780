"""What a caller learns of a failure: nothing of the server's inside, at any interface.

Every code of the error table and an unexpected exception happen while a request is
answered, with messages as they are where they are raised: full of paths and addresses.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.status_pb2 import Status
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.services.access import unauthenticated
from mlctl.services.online.batching.scheduler import QueueFullError, deadline_exceeded
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.security.public import CALLERS
from mlctl.services.online.server.seam import build_service
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.bundles import make_bundle
from tests.support.listening import listening
from tests.support.models import replace_infer

INSIDE = "/srv/secret/model.onnx at 10.1.2.3:5432, libonnxruntime.so, onnxruntime 1.27"
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
# A path of two parts, an address, what libraries and interpreters call themselves.
_LEAK = re.compile(
    r"/srv|/tmp|/home|/root|/usr|site-packages|\d+\.\d+\.\d+\.\d+|0x[0-9a-f]{6}|\.py\b|\.so\b"
    r"|Traceback|File \"|onnxruntime|bentoml|uvicorn|starlette|numpy|pydantic|orjson|grpcio",
    re.IGNORECASE,
)
# /predict is BentoML's API, and says so.
_BENTOMLS_OWN = frozenset({"x-bentoml-request-id", "server"})
Ask = Callable[[], Any]


def failures() -> list[BaseException]:
    """Every code, with a message that names the inside unless callers cause it."""
    found: list[BaseException] = [
        MlctlError(code, INSIDE, f"Look at {INSIDE}.") for code in ErrorCode if code not in CALLERS
    ]
    found += [MlctlError(code, "the caller's own mistake") for code in CALLERS]
    found += [QueueFullError(4000, 4096, 0.5), deadline_exceeded(), unauthenticated()]
    cause = FileNotFoundError(2, "No such file or directory", "/srv/secret/model.onnx")
    unexpected = RuntimeError(f"[ONNXRuntimeError] : 6 : {INSIDE}")
    unexpected.__cause__ = cause
    return [*found, cause, unexpected, MemoryError(INSIDE), KeyError(INSIDE)]


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """All of an answer that a caller can read."""

    text: str
    status: str


class Interfaces:
    """One model with a chosen failure, behind every interface."""

    def __init__(self, bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch) -> None:
        service = build_service(bundle, ServerSettings())
        self.host: ServedModel = service.inner.serving
        self.host._registry = CollectorRegistry()
        self.front = service.to_asgi()
        self.failure: BaseException = RuntimeError()
        replace_infer(monkeypatch, self.host, self._fail)
        monkeypatch.setattr("mlctl.services.online.server.seam._share_log", lambda: None)

    def _fail(self, *_arguments: Any, **_options: Any) -> Any:
        raise self.failure

    @asynccontextmanager
    async def open(self) -> AsyncIterator[dict[str, Ask]]:
        inference = InferHandler(self.host)
        app = V2App(self.host, inference)
        server = GrpcServer(self.host, "127.0.0.1", 0)
        plain = httpx.ASGITransport(self.front, raise_app_exceptions=False)
        async with (
            living(self.front),
            listening(app, infer_protocol(inference)) as infer_server,
            httpx.AsyncClient(base_url=infer_server.url) as over_http,
            httpx.AsyncClient(transport=plain, base_url="http://test") as over_asgi,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            await server.start()
            infer = "/v2/models/tiny/infer"
            try:
                yield {
                    "http": lambda: _post(over_http, infer, BODY),
                    "predict": lambda: _post(over_asgi, "/predict", {"x": [[1, 2, 3, 4]]}),
                    "grpc": lambda: _call(channel),
                }
            finally:
                await server.stop(1)


@asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
    """`app` between its start and its end, as a server calls them."""
    to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan", "state": {}}, to_app.get, from_app.put))
    for phase in ("startup", "shutdown"):
        to_app.put_nowait({"type": f"lifespan.{phase}"})
        assert await from_app.get() == {"type": f"lifespan.{phase}.complete"}
        if phase == "startup":
            yield
    await running


async def _post(client: httpx.AsyncClient, path: str, body: Any) -> ErrorAnswer:
    answer = await client.post(path, json=body)
    found = {name: value for name, value in answer.headers.items() if name not in _BENTOMLS_OWN}
    headers = " ".join(f"{name}: {value}" for name, value in found.items())
    return ErrorAnswer(f"{headers}\n{answer.text}", str(answer.status_code))


async def _call(channel: Any) -> ErrorAnswer:
    request = methods()["ModelInfer"].request(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend(
        [1] * 4
    )
    try:
        await channel.unary_unary(f"/{SERVICE}/ModelInfer")(request.SerializeToString(), timeout=60)
    except grpc.aio.AioRpcError as error:
        trailing: dict[str, Any] = dict(error.trailing_metadata() or ())
        status = Status.FromString(trailing.pop("grpc-status-details-bin"))
        details = b" ".join(detail.value for detail in status.details).decode(errors="replace")
        text = f"{error.details()} {status.message} {details} {json.dumps(trailing)}"
        return ErrorAnswer(text, error.code().name)
    raise AssertionError("the call was answered")


@pytest.fixture
def interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interfaces:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "bentoml"))
    return Interfaces(make_bundle(tmp_path / "bundle"), monkeypatch)


# BentoML reads a field of pydantic in a way that is going to end.
@pytest.mark.filterwarnings("ignore:Accessing the 'model_fields':DeprecationWarning")
async def test_errors__of_each_kind__show_no_internals(interfaces: Interfaces) -> None:
    async with interfaces.open() as senders:
        for failure in failures():
            interfaces.failure = failure
            for interface, send in senders.items():
                answer = await send()
                leak = _LEAK.search(answer.text)
                assert leak is None, (interface, failure, answer.text)
                assert answer.status == expected(interface, failure), (interface, failure, answer)


def expected(interface: str, failure: BaseException) -> str:
    """The table's status for what callers may know of, and INTERNAL's for all else."""
    known = isinstance(failure, MlctlError) and failure.code in CALLERS
    code = failure.code if known and isinstance(failure, MlctlError) else ErrorCode.INTERNAL
    spec = ERROR_TABLE[code]
    return spec.grpc if interface == "grpc" else str(spec.http)


def test_hints__for_callers__show_no_internals() -> None:
    for code in CALLERS:
        assert _LEAK.search(ERROR_TABLE[code].hint) is None, code
