from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.batching.scheduler import Priority, QueueFullError
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.models import replace_infer

Call = Callable[..., Any]
insecure_channel: Any = grpc.insecure_channel
X = np.array([[1, 2, 3, 4]], dtype="<f4")


def with_channel(
    bundle: VerifiedBundle,
    use: Callable[[grpc.aio.Channel, GrpcServer, ServedModel], Awaitable[None]],
) -> CollectorRegistry:
    """Run `use` with a channel to a started server."""
    registry = CollectorRegistry()

    async def main() -> None:
        host = ServedModel(bundle, ServerSettings(max_body_bytes=10_000), registry=registry)
        await host.start()
        server = GrpcServer(host, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await use(channel, server, host)
        await server.stop(1)
        await host.stop()

    asyncio.run(main())
    return registry


def with_server(
    bundle: VerifiedBundle, use: Callable[[Call, ServedModel], Awaitable[None]]
) -> CollectorRegistry:
    """Run `use` with a function that calls a started server."""

    async def with_call(channel: grpc.aio.Channel, _server: GrpcServer, host: ServedModel) -> None:
        def call(name: str, message: Any, timeout: float = 20, **options: Any) -> Any:
            method = methods()[name]
            send = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=lambda given: (
                    given if isinstance(given, bytes) else given.SerializeToString()
                ),
                response_deserializer=method.response.FromString,
            )
            return send(message, timeout=timeout, **options)

        await use(call, host)

    return with_channel(bundle, with_call)


def infer(name: str = "tiny", version: str = "", data: bytes = X.tobytes()) -> Any:
    message = methods()["ModelInfer"].request(model_name=name, model_version=version)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    message.raw_input_contents.append(data)
    return message


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def details_of(error: grpc.aio.AioRpcError) -> list[Any]:
    """The messages in a status's details, as a client unpacks them."""
    trailing: dict[str, Any] = dict(error.trailing_metadata() or {})
    status = Status.FromString(trailing["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    kinds = {kind.DESCRIPTOR.full_name: kind for kind in (ErrorInfo, RetryInfo)}
    found = []
    for packed in status.details:
        message = kinds[packed.TypeName()]()
        assert packed.Unpack(message)
        found.append(message)
    return found


def test_methods__each__answers(bundle: VerifiedBundle) -> None:
    def message(method: str, **values: Any) -> Any:
        return methods()[method].request(**values)

    async def use(call: Call, _host: ServedModel) -> None:
        assert (await call("ServerLive", message("ServerLive"))).live
        assert (await call("ServerReady", message("ServerReady"))).ready
        assert (await call("ModelReady", message("ModelReady", name="tiny"))).ready
        assert (await call("ServerMetadata", message("ServerMetadata"))).name == "mlctl"
        told = await call("ModelMetadata", message("ModelMetadata", name="tiny"))
        assert list(told.versions) == [bundle.digest]
        assert (told.inputs[0].datatype, list(told.outputs[0].shape)) == ("FP32", [-1, 4])
        for ready in (True, False):
            index = await call("RepositoryIndex", message("RepositoryIndex", ready=ready))
            assert [(entry.name, entry.state) for entry in index.models] == [("tiny", "READY")]
        answer = await call("ModelInfer", infer(version=bundle.digest))
        assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [12, 14, 16, 18]

    registry = with_server(bundle, use)
    labels = {"model": "tiny", "protocol": "grpc", "outcome": "ok"}
    assert registry.get_sample_value("mlctl_requests_total", labels) == 1


def test_errors__each_kind__has_the_tables_status(bundle: VerifiedBundle) -> None:
    async def use(call: Call, _host: ServedModel) -> None:
        wrong = await refused(call("ModelInfer", infer(data=b"short")))
        assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'x'" in str(wrong.details())
        other = await refused(call("ModelInfer", infer("other")))
        assert other.code() is grpc.StatusCode.NOT_FOUND
        missing = await refused(
            call("ModelReady", methods()["ModelReady"].request(name="tiny", version="1"))
        )
        assert missing.code() is grpc.StatusCode.NOT_FOUND
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            bomb = call("ModelInfer", infer(data=b"x" * 20_000), compression=packing)
            assert (await refused(bomb)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        garbage = await refused(call("ModelInfer", b"\xff\xff\xff"))
        assert garbage.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert garbage.details() == "the message is not a ModelInferRequest"
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            change = await refused(call(method, methods()[method].request(model_name="tiny")))
            assert change.code() is grpc.StatusCode.PERMISSION_DENIED

    with_server(bundle, use)


def test_errors__overload_or_unexpected__have_status_and_retry_time(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(call: Call, host: ServedModel) -> None:
        def raising(error: Exception) -> Callable[..., Any]:
            def infer_instead(*_arguments: Any) -> None:
                raise error

            return infer_instead

        replace_infer(monkeypatch, host, raising(QueueFullError(8, 8, 2.3)))
        full = await refused(call("ModelInfer", infer()))
        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(full.trailing_metadata() or {})["retry-after"] == "3"
        info, retry = details_of(full)
        assert (info.reason, info.domain) == ("QUEUE_FULL", "mlctl")
        assert retry.retry_delay.ToMilliseconds() == 2300
        replace_infer(monkeypatch, host, raising(RuntimeError("/srv/secret")))
        broken = await refused(call("ModelInfer", infer()))
        assert [type(detail) for detail in details_of(broken)] == [ErrorInfo]
        assert broken.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(broken.details())
        monkeypatch.undo()
        await host.stop()
        stopping = await refused(call("ModelInfer", infer()))
        assert stopping.code() is grpc.StatusCode.UNAVAILABLE
        info, retry = details_of(stopping)
        assert (info.reason, retry.retry_delay.seconds) == ("UNAVAILABLE", 1)

    with_server(bundle, use)


@pytest.mark.parametrize("letter", ["n", "\N{SNOWMAN}"])
def test_errors__very_long_message__is_shortened(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    async def use(call: Call, host: ServedModel) -> None:
        def refuse(*_arguments: Any) -> None:
            raise MlctlError(ErrorCode.INVALID_INPUT, letter * 20_000)

        longest = letter * (9000 // len(letter.encode()))
        for message in (infer(longest), infer(version=longest)):
            unknown = await refused(call("ModelInfer", message))
            assert unknown.code() is grpc.StatusCode.NOT_FOUND
            assert len(details_of(unknown)) == 1
        replace_infer(monkeypatch, host, refuse)
        long = await refused(call("ModelInfer", infer()))
        assert long.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(long.details()).strip(letter) == "..."
        assert details_of(long)[0].reason == "INVALID_INPUT"

    with_server(bundle, use)


@pytest.mark.parametrize("patience", [20, 0.2])
def test_cancel__client_leaves__request_is_withdrawn(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    async def use(call: Call, host: ServedModel) -> None:
        asked = asyncio.get_running_loop().create_future()
        gone = asyncio.Event()

        def never(*_arguments: Any) -> asyncio.Future[Answer]:
            pending: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            pending.add_done_callback(lambda _: gone.set())
            asked.set_result(pending)
            return pending

        replace_infer(monkeypatch, host, never)
        ongoing = call("ModelInfer", infer(), timeout=patience)
        pending = await asyncio.wait_for(asked, 20)
        if patience == 20:
            ongoing.cancel()
        await asyncio.wait_for(gone.wait(), 15)
        assert pending.cancelled()

    with_server(bundle, use)


def test_infer__deadline_and_priority__reach_the_model(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, Priority]] = []

    async def use(call: Call, host: ServedModel) -> None:
        answers = host.infer

        def noting(inputs: Any, timeout: Any, priority: Any) -> Any:
            asked.append((timeout, priority))
            return answers(inputs, timeout, priority)

        replace_infer(monkeypatch, host, noting)
        await call("ModelInfer", infer(), timeout=9)
        message = infer()
        message.parameters["timeout"].int64_param = 2_000_000
        message.parameters["priority"].uint64_param = 1
        await call("ModelInfer", message, timeout=9)
        for lane in ("normal", "High"):
            await call("ModelInfer", message, metadata=(("mlctl-priority", lane),))
        unknown = await refused(call("ModelInfer", message, metadata=(("mlctl-priority", "x"),)))
        assert unknown.code() is grpc.StatusCode.INVALID_ARGUMENT
        message.parameters["timeout"].string_param = "soon"
        wrong = await refused(call("ModelInfer", message))
        assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_server(bundle, use)
    (usual, normal), (short, high), (_, told), (_, as_before) = asked
    assert 2 < usual < 10  # on the way it is rounded up
    assert (short, normal, high) == (2.0, Priority.NORMAL, Priority.HIGH)
    assert (told, as_before) == (Priority.NORMAL, Priority.HIGH)


def test_health__server_starts_and_stops__follows(bundle: VerifiedBundle) -> None:
    async def use(channel: grpc.aio.Channel, server: GrpcServer, _host: ServedModel) -> None:
        health = HealthStub(channel)  # type: ignore[no-untyped-call]
        for service in ("", SERVICE):
            found = await health.Check(HealthCheckRequest(service=service))
            assert found.status == HealthCheckResponse.SERVING
        unknown = await refused(health.Check(HealthCheckRequest(service="other")))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        streams = [
            health.Watch(HealthCheckRequest(service=service)) for service in ("", "", "other")
        ]
        first = [(await stream.read()).status for stream in streams]
        assert first == [
            HealthCheckResponse.SERVING,
            HealthCheckResponse.SERVING,
            HealthCheckResponse.SERVICE_UNKNOWN,
        ]
        streams.pop(0).cancel()
        await server.stop(20)
        watching, unknowing = streams
        assert (await watching.read()).status == HealthCheckResponse.NOT_SERVING
        assert await watching.read() is grpc.aio.EOF
        assert await unknowing.read() is grpc.aio.EOF

    with_channel(bundle, use)


def test_reflection__services_and_messages__are_listed(bundle: VerifiedBundle) -> None:
    def look(port: int) -> None:
        with insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert {SERVICE, "grpc.health.v1.Health"} < set(database.get_services())
            file = database.FindFileContainingSymbol("inference.ModelInferRequest")
            (service,) = file.service
            assert {method.name for method in service.method} == methods().keys()
            assert database.FindFileContainingSymbol("grpc.health.v1.Health").message_type
            found = database.FindFileContainingSymbol(f"{SERVICE}.ModelInfer")
            assert found.service[0].name == service.name

    async def use(_channel: grpc.aio.Channel, server: GrpcServer, _host: ServedModel) -> None:
        await asyncio.to_thread(look, server.port)

    with_channel(bundle, use)


def test_reflection__v1__has_the_messages_of_v1alpha(bundle: VerifiedBundle) -> None:
    service = "grpc.reflection.v1.ServerReflection"

    async def use(channel: grpc.aio.Channel, _server: GrpcServer, _host: ServedModel) -> None:
        reflect: Any = channel.stream_stream(f"/{service}/ServerReflectionInfo")
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=service),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{service}.Other"),
        ]
        call = reflect((each.SerializeToString() for each in asked), timeout=20)
        read = reflection_pb2.ServerReflectionResponse.FromString
        listed, described, unknown = [read(message) async for message in call]
        names = {each.name for each in listed.list_services_response.service}
        assert {SERVICE, service, service.replace("v1", "v1alpha")} < names
        (text,) = described.file_descriptor_response.file_descriptor_proto
        file = FileDescriptorProto.FromString(text)
        pool = DescriptorPool()
        pool.Add(file)
        method: Any = pool.FindServiceByName(service).methods_by_name["ServerReflectionInfo"]
        assert method.input_type.full_name == "grpc.reflection.v1.ServerReflectionRequest"
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]

    with_channel(bundle, use)


@pytest.mark.parametrize(
    ("method", "extension"),
    [
        ("SystemSharedMemoryStatus", "'system_shared_memory' is not served"),
        ("CudaSharedMemoryRegister", "'cuda_shared_memory' is not served"),
        ("TraceSetting", "'trace' is not served"),
        ("LogSettings", "'logging' is not served"),
        ("Other", "no such method"),
    ],
)
def test_errors__method_of_an_extension_that_is_not_served__names_it(
    bundle: VerifiedBundle, method: str, extension: str
) -> None:
    async def use(channel: grpc.aio.Channel, _server: GrpcServer, _host: ServedModel) -> None:
        call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
        error = await refused(call(b"", timeout=20))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert extension in str(error.details())

    with_channel(bundle, use)


def test_server__port_in_use__is_rejected(bundle: VerifiedBundle) -> None:
    async def bind_again(_: grpc.aio.Channel, server: GrpcServer, host: ServedModel) -> None:
        with pytest.raises(MlctlError) as caught:
            GrpcServer(host, "127.0.0.1", server.port)
        assert caught.value.code is ErrorCode.PORT_TAKEN

    with_channel(bundle, bind_again)
