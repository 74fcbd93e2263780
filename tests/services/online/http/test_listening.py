"""A listener that is closed while clients come in, with real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from mlctl.core.ports import free_ports
from mlctl.services.online.http import listening
from mlctl.services.online.http.connection.accept_loop import AcceptingLoop
from tests.support.certificates import Certificates, issue_certificates
from tests.support.listening import until

COUNT = 20
Use = Callable[[Any], Awaitable[None]]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    (port,) = free_ports(1)  # one that the kernel chose would not be kept
    with socket.create_server(("127.0.0.1", port), backlog=COUNT) as made:
        yield made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue_certificates(tmp_path_factory.mktemp("certificates"))


class Echo(asyncio.Protocol):
    """Answers each client once, and ends when that is done and it was told to end."""

    def __init__(self, connections: set[Echo]) -> None:
        self.connections = connections
        self.told = self.answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.answered = True
        self.end()

    def shutdown(self) -> None:
        self.told = True
        self.end()

    def end(self) -> None:
        if self.told and self.answered:
            self.transport.close()


def run(listener: socket.socket, use: Use, tls: ssl.SSLContext | None = None) -> None:
    async def main() -> None:
        open_now: set[Echo] = set()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Echo(open_now), sock=listener, ssl=tls, backlog=COUNT
        )
        assert server.is_serving()
        async with asyncio.timeout(60):
            await use(server)
        assert not open_now

    with asyncio.Runner(loop_factory=AcceptingLoop) as runner:
        runner.run(main())


def refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return True
    return False


def talk(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return b"".join(iter(lambda: client.recv(100), b""))


def test_close__clients_in_the_backlog__are_answered(
    listener: socket.socket,
) -> None:
    address = listener.getsockname()
    # As the process that starts a worker has it.
    inherited = socket.socket(fileno=os.dup(listener.fileno()))

    async def use(server: Any) -> None:
        # The loop has no turn between this and the end: nobody has looked at them.
        clients = [socket.create_connection(address) for _ in range(COUNT)]
        server.close()
        assert refused(address)
        assert not server.is_serving()
        answers = asyncio.gather(*(asyncio.to_thread(talk, client) for client in clients))
        await server.wait_closed()
        assert await answers == [b"hello"] * COUNT
        for client in clients:
            client.close()

    with inherited:
        run(listener, use)
        inherited.listen()  # the next worker's turn
        assert not refused(address)


@pytest.mark.parametrize("ahead", [True, False])
def test_close__during_a_tls_handshake__request_is_answered(
    listener: socket.socket, certificates: Certificates, ahead: bool
) -> None:
    address = listener.getsockname()
    context = certificates.context()

    def shake(client: socket.socket) -> bytes:
        with context.wrap_socket(client, server_hostname="localhost") as shaken:
            return talk(shaken)

    async def use(server: Any) -> None:
        client = socket.create_connection(address)
        if ahead:  # the server has taken it, and waits for its first bytes
            await until(lambda: server._coming)
        server.close()
        assert refused(address)
        answer = asyncio.create_task(asyncio.to_thread(shake, client))
        await server.wait_closed()
        assert await answer == b"hello"

    run(listener, use, certificates.tls().context())


def test_close__client_without_a_handshake__is_disconnected(
    listener: socket.socket, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_GRACE_SECONDS", 0.05)
    address = listener.getsockname()

    async def use(server: Any) -> None:
        silent, wrong = (socket.create_connection(address) for _ in range(2))
        with closing(silent), closing(wrong):
            wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: server._coming)
            server.close()
            await server.wait_closed()
            await until(lambda: not server._coming)
            assert refused(address)
            for client in (silent, wrong):
                with suppress(ConnectionResetError):
                    while await asyncio.to_thread(client.recv, 100):
                        pass  # what is wrong, if it is told

    run(listener, use, certificates.tls().context())


def test_close__wait_times_out__handshakes_are_cancelled(
    listener: socket.socket, certificates: Certificates
) -> None:
    address = listener.getsockname()

    async def use(server: Any) -> None:
        with closing(socket.create_connection(address)):
            await until(lambda: server._coming)
            (task,) = server._coming
            server.close()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await server.wait_closed()
            await asyncio.wait([task])
            assert task.cancelled()

    run(listener, use, certificates.tls().context())


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        with suppress(OSError):
            while True:  # what is free below
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def test_accept__no_file_descriptors_left__clients_wait(
    listener: socket.socket,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listening, "_BREATH_SECONDS", 0.05)
    address = listener.getsockname()

    async def use(server: Any) -> None:
        with closing(socket.socket()) as client:
            with no_more_files():
                client.connect(address)
                await until(lambda: "no connection can be accepted" in caplog.text)
                assert not server._coming
            await until(lambda: server._coming)
        server.close()
        await server.wait_closed()

    run(listener, use, certificates.tls().context())
