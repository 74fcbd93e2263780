"""The load client in C, against real servers."""

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc as typed_grpc
import pytest

from benchmarks.native import build, grpc_call, run_load
from rollout.local.launcher import free_ports
from services.bench.inputs import post
from tests.support.wait import wait_until

grpc: Any = typed_grpc  # its functions have no types
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
BODY_BYTES = 300
LARGE = b"x" * 40_000
METHOD = "/test.Service/Echo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def loadgen(folder: Path) -> Path:
    return build("loadgen", folder)


@pytest.fixture
def echo_port(folder: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    with subprocess.Popen([build("echo", folder), str(port), str(BODY_BYTES)]) as process:
        yield port
        process.kill()


class Echo(typed_grpc.GenericRpcHandler):
    """Answers each call with its message; `refuse` answers none."""

    def __init__(self, *, refuse: bool) -> None:
        self._refuse = refuse

    def service(self, handler_call_details: typed_grpc.HandlerCallDetails) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            if self._refuse:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
            return request

        assert handler_call_details.method == METHOD
        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def grpc_port(*, refuse: bool = False) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Echo(refuse=refuse),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def is_open(program: Path, port: int, request: Path) -> bool:
    try:
        return run_load(program, "http", port, request, 1, 0.01).answered > 0
    except subprocess.CalledProcessError:  # it does not listen yet
        return False


@pytest.mark.parametrize("body", [b"short", LARGE])
def test_http_answers_are_counted(
    loadgen: Path, echo_port: int, tmp_path: Path, body: bytes
) -> None:
    request = tmp_path / "request"
    request.write_bytes(post("/", body, {"Host": "test"}))
    wait_until(lambda: is_open(loadgen, echo_port, request))
    load = run_load(loadgen, "http", echo_port, request, 8, 0.2)
    assert load.failed == 0
    assert load.answered >= 8
    assert 0 < load.p50_ms <= load.p99_ms < load.seconds * 1e3


@pytest.mark.parametrize("message", [b"short", LARGE])
def test_grpc_answers_are_counted(loadgen: Path, tmp_path: Path, message: bytes) -> None:
    request = tmp_path / "request"
    request.write_bytes(grpc_call(METHOD, message))
    with grpc_port() as port:
        load = run_load(loadgen, "grpc", port, request, 4, 0.3)
    assert load.failed == 0
    assert load.answered >= 4


def test_a_grpc_refusal_is_no_answer(loadgen: Path, tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_bytes(grpc_call(METHOD, b"short"))
    with grpc_port(refuse=True) as port:
        load = run_load(loadgen, "grpc", port, request, 2, 0.1)
    assert load.answered == 0
    assert load.failed >= 2
