from __future__ import annotations

import asyncio
import json
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from rollout.local.launcher import free_ports
from services.admin.server import open_admin, open_listener
from services.host import ModelHost
from services.settings import Settings
from tests.support.listening import until


def settings(**chosen: object) -> Settings:
    return Settings.model_validate(chosen)


def test_off_unless_it_is_asked_for(shared_bundle: VerifiedBundle) -> None:
    host = ModelHost(shared_bundle, Settings(), registry=CollectorRegistry())
    assert open_admin(host, 1) is None


@pytest.mark.parametrize("way", ["port", "path"])
def test_it_answers_until_it_stops(shared_bundle: VerifiedBundle, tmp_path: Path, way: str) -> None:
    (port,) = free_ports(1)
    control = tmp_path / "control.json"
    chosen = settings(
        sample_dir=tmp_path,
        sample_control=control,
        **({"admin_port": port} if way == "port" else {"admin_dir": tmp_path / "admin"}),
    )
    path = tmp_path / "admin" / "worker-2.sock"
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        host = ModelHost(shared_bundle, chosen, registry=CollectorRegistry())
        server = open_admin(host, 2)
        assert server is not None
        await server.start()
        transport = httpx.AsyncHTTPTransport(uds=str(path) if way == "path" else None)
        base = f"http://127.0.0.1:{port}" if way == "port" else "http://localhost"
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            assert (await client.get("/admin/status")).json()["state"] == "starting"
            assert (await client.put("/admin/sampling", json={"share": 0.5})).status_code == 200
            assert json.loads(control.read_text())["share"] == 0.5
            assert signal.getsignal(signal.SIGTERM) == before
            if way == "path":
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await server.stop()
        async with httpx.AsyncClient(base_url=base) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/admin/status")
        assert not path.exists()

    asyncio.run(main())


def test_a_slow_client_does_not_hold_it(shared_bundle: VerifiedBundle, tmp_path: Path) -> None:
    async def main() -> None:
        host = ModelHost(shared_bundle, settings(admin_dir=tmp_path), registry=CollectorRegistry())
        server = open_admin(host, 1)
        assert server is not None
        await server.start()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "worker-1.sock")
        head = b"POST /admin/log-level HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"
        writer.write(head)
        await until(lambda: server._server.server_state.tasks)
        await server.stop()
        await reader.read()
        writer.close()

    asyncio.run(main())


def test_a_socket_that_a_dead_worker_left_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        listener = open_listener(settings(admin_dir=tmp_path), 1)
        assert listener is not None
        listener.close()  # as a killed process does it: the file stays
        assert (tmp_path / "worker-1.sock").exists()


def test_what_cannot_listen_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MlctlError) as caught:
            open_listener(settings(admin_port=port), 1)
    assert caught.value.code is ErrorCode.PORT_TAKEN
    with pytest.raises(MlctlError, match="2 workers cannot share"):
        settings(admin_port=port).check(2)
    (tmp_path / "file").write_text("")
    with pytest.raises(MlctlError, match=r"file/worker-1\.sock"):
        open_listener(settings(admin_dir=tmp_path / "file"), 1)
    with pytest.raises(MlctlError, match="cannot use"):
        open_listener(settings(admin_dir=tmp_path / ("long" * 40)), 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(MlctlError, match="open to other machines") as caught:
        settings(admin_port=9, admin_host=host).check(1)
    assert caught.value.code is ErrorCode.INVALID_INPUT
