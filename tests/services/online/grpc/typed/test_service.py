"""The typed service on a real server, asked with stubs that protoc made."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from prometheus_client import CollectorRegistry

from mlctl.bento.clients.languages import proto_files, write_files
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.models import GrpcModels
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.grpc.typed.service import typed_services
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.openapi.model import describe
from mlctl.services.online.settings import ServerSettings
from tests.services.online.grpc.test_server import details_of, refused, with_channel

SERVICE = "mlctl.models.tiny.v1.Predictor"
PREDICT = f"/{SERVICE}/Predict"
protoc: Any = importlib.import_module("grpc_tools.protoc")
insecure_channel: Any = grpc.insecure_channel
health: Any = HealthStub


@pytest.fixture(scope="module")
def stubs(
    shared_bundle: VerifiedBundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Any]]:
    """The modules of messages and stubs that protoc makes of the printed file."""
    folder = tmp_path_factory.mktemp("proto")
    manifest = shared_bundle.manifest
    model = describe(manifest.name, shared_bundle.digest, manifest.signature)
    files = proto_files(model)
    write_files(folder / "source", files)
    options = [f"-I{folder / 'source'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *options, *files]) == 0
    before = sys.modules.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        # As in a new process: the stubs' folder is on the path when the package is imported.
        for name in [name for name in sys.modules if name.split(".")[0] == "mlctl"]:
            patch.delitem(sys.modules, name)
        names = ("mlctl.models.tiny.v1.tiny_pb2", "mlctl.models.tiny.v1.tiny_pb2_grpc")
        messages, services = map(importlib.import_module, names)
        yield messages, services
    for name in sys.modules.keys() - before.keys():
        if name.split(".")[0] == "mlctl":
            del sys.modules[name]


Use = Callable[[Any, Any, ServedModel], Awaitable[None]]


def with_stub(bundle: VerifiedBundle, stubs: tuple[Any, Any], use: Use) -> CollectorRegistry:
    """Run `use` with the messages and a stub of a started server."""
    messages, services = stubs

    async def connect(channel: grpc.aio.Channel, _server: GrpcServer, host: ServedModel) -> None:
        await use(messages, services.PredictorStub(channel), host)

    return with_channel(bundle, connect)


def test_typed_service__generated_stubs__get_answers(
    shared_bundle: VerifiedBundle, stubs: tuple[Any, Any]
) -> None:
    async def use(messages: Any, stub: Any, _host: ServedModel) -> None:
        for shape in ([], [2, 4]):
            request = messages.Request(x=[1, 2, 3, 4, 0, 0, 0, 1], x_shape=shape)
            answer = await stub.Predict(request, timeout=20)
            assert list(answer.y) == [12, 14, 16, 18, 1, 1, 1, 3]
            assert list(answer.y_shape) == [2, 4]
            assert answer.model_digest == shared_bundle.digest
        request = messages.Request(x=[1, 2, 3, 4])
        packed = await stub.Predict(request, timeout=20, compression=grpc.Compression.Gzip)
        assert list(packed.y) == [12, 14, 16, 18]

    registry = with_stub(shared_bundle, stubs, use)
    labels = {"model": "tiny", "protocol": "grpc", "outcome": "ok"}
    assert registry.get_sample_value("mlctl_requests_total", labels) == 3


def test_typed_service__invalid_requests__have_the_tables_status(
    shared_bundle: VerifiedBundle, stubs: tuple[Any, Any]
) -> None:
    async def use(messages: Any, stub: Any, host: ServedModel) -> None:
        for request, said in (
            (messages.Request(x=[1, 2, 3]), "3 values do not give the shape"),
            (messages.Request(x=[1, 2, 3, 4], x_shape=[2, 4]), "'x'"),
            (messages.Request(x=[1, 2, 3, 4], x_shape=[1, -4]), "size of a dimension"),
            (messages.Request(x=[1, 2, 3, 4], x_shape=[4]), "1 dimensions"),
            (messages.Request(), "'x'"),
        ):
            wrong = await refused(stub.Predict(request, timeout=20))
            assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in str(wrong.details())
            assert details_of(wrong)[0].reason == "INVALID_INPUT"
        large = await refused(stub.Predict(messages.Request(x=[0] * 4000), timeout=20))
        assert large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await host.stop()
        stopping = await refused(stub.Predict(messages.Request(x=[1, 2, 3, 4]), timeout=20))
        assert stopping.code() is grpc.StatusCode.UNAVAILABLE

    registry = with_stub(shared_bundle, stubs, use)
    labels = {"model": "tiny", "protocol": "grpc", "outcome": "invalid_input"}
    assert registry.get_sample_value("mlctl_requests_total", labels) == 5


def test_typed_service__deadline_or_unexpected_error__has_its_status(
    shared_bundle: VerifiedBundle, stubs: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(messages: Any, stub: Any, host: ServedModel) -> None:
        limits = []
        answers = host.infer

        def noting(inputs: Any, timeout: Any, priority: Any) -> Any:
            limits.append(timeout)
            return answers(inputs, timeout, priority)

        def raising(*_arguments: Any) -> None:
            raise RuntimeError("/srv/secret")

        request = messages.Request(x=[1, 2, 3, 4])
        monkeypatch.setattr(host, "infer", noting)
        await stub.Predict(request, timeout=9)
        assert 2 < limits[0] < 10
        monkeypatch.setattr(host, "infer", raising)
        broken = await refused(stub.Predict(request, timeout=9))
        assert broken.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(broken.details())

    with_stub(shared_bundle, stubs, use)


def test_typed_service__invalid_message_or_method__is_rejected(
    shared_bundle: VerifiedBundle,
) -> None:
    async def use(channel: grpc.aio.Channel, _server: GrpcServer, _host: ServedModel) -> None:
        method: Any = channel.unary_unary(PREDICT)
        wrong = await refused(method(b"\xff\xff\xff", timeout=20))
        assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert wrong.details() == "the message is not a mlctl.models.tiny.v1.Request"
        unknown: Any = channel.unary_unary(f"/{SERVICE}/Other")
        other = await refused(unknown(b"", timeout=20))
        assert other.code() is grpc.StatusCode.UNIMPLEMENTED

    with_channel(shared_bundle, use)


def test_typed_service__reflection_and_health__know_it(
    shared_bundle: VerifiedBundle, stubs: tuple[Any, Any]
) -> None:
    printed = stubs[0].DESCRIPTOR

    def look(port: int) -> None:
        with insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert SERVICE in database.get_services()
            found = database.FindFileContainingSymbol(f"{printed.package}.Request")
            for message in found.message_type:
                same = printed.message_types_by_name[message.name]
                assert {each.name: each.number for each in message.field} == {
                    each.name: each.number for each in same.fields
                }
            asked = health(channel).Check(HealthCheckRequest(service=SERVICE), timeout=20)
            assert asked.status == HealthCheckResponse.SERVING

    async def use(_channel: grpc.aio.Channel, server: GrpcServer, _host: ServedModel) -> None:
        await asyncio.to_thread(look, server.port)

    with_channel(shared_bundle, use)


async def test_typed_service__without_a_token__is_rejected(
    shared_bundle: VerifiedBundle, stubs: tuple[Any, Any]
) -> None:
    messages, services = stubs

    settings = ServerSettings(token="t" * 32)
    host = ServedModel(shared_bundle, settings, registry=CollectorRegistry())
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub, request = services.PredictorStub(channel), messages.Request(x=[1, 2, 3, 4])
        none = await refused(stub.Predict(request, timeout=20))
        assert none.code() is grpc.StatusCode.UNAUTHENTICATED
        token = (("authorization", f"Bearer {'t' * 32}"),)
        answer = await stub.Predict(request, timeout=20, metadata=token)
        assert list(answer.y) == [12, 14, 16, 18]
    await server.stop(1)
    await host.stop()


def test_typed_services__names_of_one_package__have_none(
    shared_bundle: VerifiedBundle, caplog: pytest.LogCaptureFixture
) -> None:
    host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    models = GrpcModels(host)
    only = models.default
    host.name = "a-b"
    assert [each.name for each in typed_services(models)] == ["mlctl.models.a_b.v1.Predictor"]
    other = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    other.name = "a.b"
    models._by_name = {"a-b": only, "a.b": only._replace(served=other)}
    assert typed_services(models) == []
    assert "mlctl.models.a_b.v1.Predictor" in caplog.text
