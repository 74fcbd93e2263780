"""The ports and the counts that the workers of one server share."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tornado.ioloop import IOLoop

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.services.online.grpc_port import reserve_port
from mlctl.services.online.server.workers import (
    explain,
    forget_dead_workers,
    join_server,
    listen_alone,
    prepare_server,
    supervisor,
)
from mlctl.services.online.settings import ServerSettings


def listener(port: int, *, shared: bool) -> socket.socket:
    made = socket.socket()
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_reserve_port__reserved__only_sharing_listeners_bind() -> None:
    (port,) = free_ports(1)
    with reserve_port("127.0.0.1", port), pytest.raises(OSError, match="in use"):
        listener(port, shared=False)
    with reserve_port("127.0.0.1", port):
        with pytest.raises(MlctlError) as caught:
            reserve_port("127.0.0.1", port)
        assert caught.value.code is ErrorCode.PORT_TAKEN
        with listener(port, shared=True) as one, socket.create_connection(("127.0.0.1", port)):
            one.accept()[0].close()  # and nothing goes to the one that only reserves


@pytest.mark.parametrize("shared", [False, True])
def test_reserve_port__port_in_use__is_rejected(shared: bool) -> None:
    (port,) = free_ports(1)
    with listener(port, shared=shared), pytest.raises(MlctlError) as caught:
        reserve_port("127.0.0.1", port)
    assert f"127.0.0.1:{port}" in caught.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads connections")
def test_listen_alone__several_workers__share_the_connections() -> None:
    (port,) = free_ports(1)
    with listener(port, shared=False) as inherited:
        descriptors = [os.dup(inherited.fileno()) for _ in range(3)]
        for descriptor in descriptors:
            listen_alone(descriptor)
        with pytest.raises(ConnectionRefusedError):  # before one of them is ready
            socket.create_connection(("127.0.0.1", port))
        mine = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for each in mine[:2]:
            each.listen()
            each.setblocking(False)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
        counts = [accept_all(each) for each in mine[:2]]
        assert sum(counts) == 64
        assert min(counts) > 8
        for each in (*clients, *mine):
            each.close()


def accept_all(listening: socket.socket) -> int:
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_gauges__of_dead_workers__are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    child = "import sys; print(flush=True); sys.stdin.read()"
    # A sibling of the process that looks has the same parent: look from another child.
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as sibling:
        assert sibling.stdout is not None
        assert sibling.stdin is not None
        sibling.stdout.readline()
        names = [f"gauge_livesum_{sibling.pid}.db", "gauge_livesum_1.db", "counter_1.db"]
        for name in names:
            (tmp_path / name).touch()
        look = (
            "from mlctl.services.online.server.workers import forget_dead_workers\n"
            "forget_dead_workers()"
        )
        subprocess.run([sys.executable, "-c", look], check=True)
        assert files(tmp_path) == ["counter_1.db", f"gauge_livesum_{sibling.pid}.db"]
        sibling.stdin.close()
    forget_dead_workers()
    assert files(tmp_path) == ["counter_1.db"]


def test_prepare_server__several_workers__count_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("mlctl.services.online.server.workers._reserved", reserved := [])  # type: ignore[var-annotated]
    for name in ("MLCTL_COUNTS_DIR", "PROMETHEUS_MULTIPROC_DIR", "MLCTL_SUPERVISOR_PID"):
        monkeypatch.setenv(name, "of another server")
    monkeypatch.setenv("BENTOML_CONTAINERIZED", "true")
    monkeypatch.setattr(IOLoop, "time", IOLoop.time)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    (port,) = free_ports(1)
    prepare_server(ServerSettings(workers=2, grpc_port=port))
    join_server(ServerSettings(workers=2, max_connections=10))
    folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    assert supervisor() == os.getpid()
    assert folder.parent == tmp_path
    assert folder.is_dir()
    assert "BENTOML_CONTAINERIZED" not in os.environ  # else a dead worker is not replaced
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]
    for each in reserved:
        assert each.getsockname()[1] == port
        each.close()


def test_explain__each_error__has_code_and_hint() -> None:
    error = MlctlError(ErrorCode.FILE_ALTERED, "file 'a' is not the one")
    assert "file_altered" in explain(error)
    assert error.hint in explain(error)
    assert "boom" in explain(RuntimeError("boom"))
