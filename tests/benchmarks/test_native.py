"""The load clients in C, against real servers."""

import itertools
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc as typed_grpc
import numpy as np
import pytest

from benchmarks.native import (
    ANSWERED,
    FAILED,
    HINTED,
    REFUSED,
    build,
    grpc_call,
    run_load,
    run_open,
)
from loadtest.inputs import post
from rollout.drivers.local.ports import free_ports
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


@pytest.fixture(scope="module")
def open_loop(folder: Path) -> Path:
    return build("open", folder)


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("message", [b"short", LARGE])
def test_grpc_answers_are_counted(loadgen: Path, tmp_path: Path, message: bytes) -> None:
    request = tmp_path / "request"
    request.write_bytes(grpc_call(METHOD, message))
    with grpc_port() as port:
        load = run_load(loadgen, "grpc", port, request, 4, 0.3)
    assert load.failed == 0
    assert load.answered >= 4


@pytest.mark.slow
def test_a_grpc_refusal_is_no_answer(loadgen: Path, tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_bytes(grpc_call(METHOD, b"short"))
    with grpc_port(refuse=True) as port:
        load = run_load(loadgen, "grpc", port, request, 2, 0.1)
    assert load.answered == 0
    assert load.failed >= 2


FIRST = 3
REFUSAL = (b" 503 ", b"\r\nRetry-After: ")


@contextmanager
def busy_port() -> Iterator[int]:
    """Answers the first requests, then refuses with a hint, refuses without, and fails, in turn."""
    numbers = itertools.count()

    class Busy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            number = next(numbers) - FIRST
            self.send_response(200 if number < 0 else (503, 503, 400)[number % 3])
            if number % 3 == 0:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"no")

        def log_message(self, *_: Any) -> None:
            """Nothing is of interest."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_an_open_loop_asks_when_it_is_time(
    open_loop: Path, loadgen: Path, echo_port: int, tmp_path: Path
) -> None:
    request = tmp_path / "request"
    request.write_bytes(post("/", b"short", {"Host": "test"}))
    wait_until(lambda: is_open(loadgen, echo_port, request))
    found = run_open(open_loop, "http", echo_port, request, 400, 0.5, REFUSAL, (FIRST, 50))
    assert set(found.outcome) == {ANSWERED}
    # A Poisson process of 200: the seed is always the same.
    assert 150 < len(found.due) < 250
    assert 0 < found.due.min() < found.due.max() < 0.5
    assert np.all((found.late >= 0) & (found.latency > found.late))
    assert FIRST <= found.connections <= 50


@pytest.mark.slow
def test_an_open_loop_tells_refusals_from_failures(open_loop: Path, tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_bytes(post("/", b"short", {"Host": "test"}))
    with busy_port() as port:
        found = run_open(open_loop, "http", port, request, 100, 0.6, REFUSAL, (FIRST, 3))
    kinds, counts = np.unique(found.outcome, return_counts=True)
    assert list(kinds) == [HINTED, REFUSED, FAILED]
    assert counts.max() - counts.min() <= 1
    assert found.connections == 3


@pytest.mark.slow
def test_an_open_loop_of_grpc(open_loop: Path, tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_bytes(grpc_call(METHOD, b"short"))
    with grpc_port() as port:
        found = run_open(open_loop, "grpc", port, request, 100, 0.5, (b"no", b"hint"), (FIRST, 50))
    assert set(found.outcome) == {ANSWERED}
    assert len(found.due) > 25
