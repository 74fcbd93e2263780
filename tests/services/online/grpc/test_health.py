from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from h2.events import RemoteSettingsChanged
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.http2.core import MAX_STREAMS
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.services.online.grpc.http2.conftest import Raw
from tests.support.listening import until

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


async def test_watch__server_drains__is_notified_once(shared_bundle: VerifiedBundle) -> None:
    host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        watches = [health.Watch(HealthCheckRequest()) for _ in range(2)]

        async def statuses() -> set[int]:
            return {(await watch.read()).status for watch in watches}

        assert await statuses() == {SERVING}
        host.drain()
        assert await statuses() == {NOT_SERVING}
        host.drain()  # nothing new
        await server.stop(20)
        assert {await watch.read() for watch in watches} == {grpc.aio.EOF}
    await host.stop()


async def test_watch__above_the_limit__is_rejected_until_one_ends(
    shared_bundle: VerifiedBundle,
) -> None:
    settings = ServerSettings(max_connections=3)
    host = ServedModel(shared_bundle, settings, registry=CollectorRegistry())
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health: Any = HealthStub(channel)  # type: ignore[no-untyped-call]
        watches = [health.Watch(HealthCheckRequest()) for _ in range(3)]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        one_more = health.Watch(HealthCheckRequest())
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await health.Check(HealthCheckRequest())).status == SERVING
        watches[0].cancel()
        await until(lambda: server._health._watches == 2)
        assert (await health.Watch(HealthCheckRequest()).read()).status == SERVING
        await server.stop(20)
    await host.stop()


async def test_settings__new_connection__announce_the_limit_of_streams(
    shared_bundle: VerifiedBundle,
) -> None:
    host = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    server = GrpcServer(host, "127.0.0.1", 0)
    await server.start()
    raw = await Raw.open(server.port)
    await raw.until(lambda: raw.of(RemoteSettingsChanged))
    assert raw.core.remote_settings.max_concurrent_streams == MAX_STREAMS
    raw.close()
    await server.stop(20)
    await host.stop()
