"""A server of a small model with precomputed answers, asked over each of its doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.http.app import V2App
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.precomputed.base import PrecomputedRow, PrecomputedStore
from mlctl.services.precomputed.row_codec import RowCodec
from mlctl.services.precomputed.store_urls import open_store
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.bundles import make_bundle
from tests.support.listening import listening

DOORS = ("http", "grpc")
NAME = "tiny-answers"


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, whichever door it came through."""

    status: str
    y: list[list[float]] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(default_factory=dict)


Ask = Callable[..., Awaitable[Said]]
INFER = "/v2/models/tiny/infer"


def make_live(store: PrecomputedStore, digest: str, *rows: PrecomputedRow) -> int:
    """Make a generation of `rows` the live one of `digest`."""
    number = store.create(digest, rows[0].at)
    store.commit(number, rows)
    store.seal(number)
    store.flip(number, rows[0].at)
    return number


@dataclass(slots=True)
class Bench:
    """A bundle, a folder of answers for it, and what its last server counted."""

    bundle: VerifiedBundle
    folder: Path
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def store(self) -> Any:
        return open_store(NAME, str(self.folder))

    def fill(self, answers: Mapping[str, float], at: float, digest: str = "") -> int:
        """A live generation; each key's answer is four times the same number."""
        store = self.store()
        codec = RowCodec(self.bundle.manifest.signature.outputs)
        y = np.array([[value] * 4 for value in answers.values()], np.float32)
        payloads = codec.encode({"y": y})
        rows = [PrecomputedRow(key, at, p) for key, p in zip(answers, payloads, strict=True)]
        number = make_live(store, digest or self.bundle.digest, *rows)
        store.close()
        return number

    def counted(self, result: str) -> float:
        labels = {"model": "tiny", "result": result}
        return self.registry.get_sample_value("mlctl_precomputed_lookups_total", labels) or 0.0

    def run(
        self,
        use: Callable[[Ask, ServedModel], Awaitable[None]],
        door: str = "http",
        bundle: VerifiedBundle | None = None,
        **settings: Any,
    ) -> None:
        """Call `use` with what asks a server over `door`."""
        given = {"precomputed": NAME, "precomputed_store": str(self.folder), **settings}
        self.registry = CollectorRegistry()

        async def main() -> None:
            host = ServedModel(
                bundle or self.bundle, ServerSettings(**given), registry=self.registry
            )
            await host.start()
            if door == "grpc":
                await _over_grpc(host, use)
            else:
                await _over_http(host, use)
            await host.stop()

        asyncio.run(main())


@asynccontextmanager
async def served(host: ServedModel) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of `host`."""
    inference = InferHandler(host)
    async with (
        listening(V2App(host, inference), infer_protocol(inference)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        yield client


async def _over_http(host: ServedModel, use: Any) -> None:
    async with served(host) as client:

        async def ask(keys: Any = None, x: Any = None) -> Said:
            document: dict[str, Any] = {}
            if keys is not None:
                document["parameters"] = {"entity_key": keys}
            if x is not None:
                tensor = {"name": "x", "datatype": "FP32", "shape": list(np.shape(x)), "data": x}
                document["inputs"] = [tensor]
            reply = await client.post(INFER, json=document)
            found = reply.json()
            if reply.status_code != 200:
                return Said(found["code"])
            (y,) = found["outputs"]
            rows = np.array(y["data"]).reshape(y["shape"]).tolist()
            return Said("ok", rows, found.get("parameters", {}))

        await use(ask, host)


async def _over_grpc(host: ServedModel, use: Any) -> None:
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    method = methods()["ModelInfer"]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call: Any = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=method.response.FromString,
        )

        async def ask(keys: Any = None, x: Any = None) -> Said:
            message = method.request(model_name="tiny")
            if isinstance(keys, list):
                message.parameters["entity_keys"].string_param = orjson.dumps(keys).decode()
            elif isinstance(keys, str):
                message.parameters["entity_key"].string_param = keys
            if x is not None:
                message.inputs.add(name="x", datatype="FP32", shape=np.shape(x))
                message.raw_input_contents.append(np.array(x, "<f4").tobytes())
            try:
                answer = await call(message, timeout=30)
            except grpc.aio.AioRpcError as error:
                return Said(error.code().name.lower())
            y = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(-1, 4).tolist()
            said = {
                name: getattr(value, value.WhichOneof("parameter_choice"))
                for name, value in answer.parameters.items()
            }
            return Said("ok", y, said)

        await use(ask, host)
    await server.stop(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_bundle(tmp_path_factory.mktemp("precomputed") / "bundle")


@pytest.fixture
def bench(tiny: VerifiedBundle, tmp_path: Path) -> Bench:
    return Bench(tiny, tmp_path / "answers")
