"""A server that must not serve ends by itself; one that is told to stop finishes its work."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.services.model.golden import load_golden, save_golden
from tests.support.bundles import make_bundle
from tests.support.serving import Server, launch, running, stop
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SERVICE = "mlctl.services.service:service"


@pytest.fixture
def bundle(tmp_path: Path) -> VerifiedBundle:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a plain `bentoml build` and `bentoml serve` in the repository see."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(ROOT / "bentofile.yaml", folder)
    (folder / "mlctl").mkdir()
    shutil.copy(ROOT / "mlctl/__init__.py", folder / "mlctl")
    for package in ("bundle", "core", "services"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def serve(project: Path, tmp_path: Path, bundle: VerifiedBundle | None = None) -> Server:
    variables = {"MLCTL_BUNDLE": str(bundle.root)} if bundle else {}
    home = tmp_path / "bentoml"
    return launch(SERVICE, tmp_path / "log", cwd=project, bento_home=home, environment=variables)


@pytest.fixture
def ended() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        stop(server)


def test_start__one_byte_of_the_bundle_changed__fails(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    model = bundle.root / "model.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    server = serve(project, tmp_path, bundle)
    ended.append(server)
    assert server.process.wait(timeout=PATIENCE_SECONDS) != 0
    log = server.log.read_text()
    assert "file 'model.onnx' does not have the sha256 of the manifest" in log
    assert "Traceback" not in log


def test_start__golden_answers_differ__ends_the_whole_server(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    inputs, outputs = load_golden(bundle.path("golden.npz"))
    save_golden(bundle.root / "golden.npz", inputs, {"y": outputs["y"] + 1})
    server = serve(project, tmp_path, seal(bundle.root, bundle.manifest))
    ended.append(server)
    server.process.wait(timeout=PATIENCE_SECONDS)  # instead of starting the worker again and again
    assert "parity_failed" in server.log.read_text()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/readyz")


def test_start__load_crashes__ends_the_whole_server_with_the_signal(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    session = project / "services/model/session.py"
    opening = "    return OnnxSession(load_onnx(model, chain, threads), provider)\n"
    crash = "    os.kill(os.getpid(), 11)  # as native code does\n"
    assert opening in session.read_text()
    session.write_text(session.read_text().replace(opening, crash + opening))
    server = serve(project, tmp_path, bundle)
    ended.append(server)
    code = ERROR_TABLE[ErrorCode.UNSUPPORTED_MODEL].exit_code
    assert server.process.wait(timeout=PATIENCE_SECONDS) == code
    assert server.log.read_text().count("the process that loaded 'tiny' died of SIGSEGV") == 1


def test_start__worker_cannot_import_the_server__ends_the_whole_server(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    Path(project, "services/online/grpc/server.py").write_text("import no_such_package\n")
    server = serve(project, tmp_path, bundle)
    ended.append(server)
    assert (
        server.process.wait(timeout=PATIENCE_SECONDS) == ERROR_TABLE[ErrorCode.INTERNAL].exit_code
    )
    assert "mlctl could not start the model: ModuleNotFoundError" in server.log.read_text()


def test_stop__sigterm__requests_in_flight_are_answered(
    project: Path, tmp_path: Path, bundle: VerifiedBundle
) -> None:
    """One on each way: our protocol reads a plain one, the application one that expects."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n"
    with running(serve(project, tmp_path, bundle)) as server:
        address = ("127.0.0.1", server.port)
        with (
            socket.create_connection(address, timeout=PATIENCE_SECONDS) as plain,
            socket.create_connection(address, timeout=PATIENCE_SECONDS) as expecting,
        ):
            plain.sendall(head.encode() + b"\r\n" + body[:9])
            expecting.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert expecting.recv(100).startswith(b"HTTP/1.1 100")  # the worker reads the bodies
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), what="the listener is closed")
            with pytest.raises(ConnectionRefusedError):  # by the kernel, not with a reset later
                socket.create_connection(address)
            assert server.process.poll() is None
            for client, rest in ((plain, body[9:]), (expecting, body)):
                client.sendall(rest)
                answer = b"".join(iter(partial(client.recv, 65536), b""))
                assert answer.startswith(b"HTTP/1.1 200")
                assert b'"data":[12.0,14.0,16.0,18.0]' in answer
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_worker__terminated_and_then_supervisor_killed__is_replaced_and_then_ends(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    server = serve(project, tmp_path, bundle)
    ended.append(server)
    wait_until(server.is_ready, what="server is ready")
    (worker,) = psutil.Process(server.process.pid).children()
    worker.terminate()
    worker.wait(PATIENCE_SECONDS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    wait_until(server.is_ready, what="another worker listens on the same port")

    (worker,) = psutil.Process(server.process.pid).children()
    server.process.kill()
    server.process.wait(timeout=PATIENCE_SECONDS)
    wait_until(lambda: not worker.is_running(), what="the worker is gone")
    log = server.log.read_text().partition("the supervisor is gone")
    assert log[1]
    assert "Completed async cleanup hook" in log[2]


def test_bentoml__build_and_serve_from_the_repository__works(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(project / "model")
    home = tmp_path / "bentoml"
    monkeypatch.setenv("BENTOML_HOME", str(home))
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    command = [sys.executable, "-m", "bentoml", "build", "--output", "tag"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tag = done.stdout.strip().splitlines()[-1].removeprefix("__tag__:")
    shutil.rmtree(project / "model")  # the Bento has its own
    server = launch(tag, tmp_path / "log", cwd=tmp_path, bento_home=home)
    with running(server):
        found = httpx.get(f"{server.url}/v2/models/tiny").json()
        assert found["versions"] == [bundle.digest]


def test_start__grpc_port_in_use__ends_the_server_and_names_it(
    project: Path, tmp_path: Path, bundle: VerifiedBundle, ended: list[Server]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        environment = {"MLCTL_BUNDLE": str(bundle.root), "MLCTL_GRPC_PORT": str(port)}
        server = launch(
            SERVICE,
            tmp_path / "log",
            cwd=project,
            bento_home=tmp_path / "bentoml",
            environment=environment,
        )
        ended.append(server)
        server.process.wait(timeout=PATIENCE_SECONDS)
    assert f"gRPC cannot listen on 127.0.0.1:{port}" in server.log.read_text()
