"""The C load generator against real servers."""

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

from benchmarks.loadgen import (
    FAILED,
    HINTED,
    REJECTED,
    SUCCESS,
    LoadTarget,
    RandomField,
    build,
    grpc_call,
    run_closed,
    run_open,
)
from mlctl.core.ports import free_ports
from mlctl.loadtest.inputs import post
from tests.support.wait import wait_until

grpc: Any = typed_grpc  # its functions have no types
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
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
    """Return each call's message; abort every call if `rejects`."""

    def __init__(self, *, rejects: bool) -> None:
        self._rejects = rejects

    def service(self, handler_call_details: typed_grpc.HandlerCallDetails) -> Any:
        def respond(request: bytes, context: Any) -> bytes:
            if self._rejects:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
            return request

        assert handler_call_details.method == METHOD
        return grpc.unary_unary_rpc_method_handler(respond)


@contextmanager
def grpc_port(*, rejects: bool = False) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Echo(rejects=rejects),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def http_target(port: int, body: bytes = b"short") -> LoadTarget:
    return LoadTarget("http", port, post("/", body, {"Host": "test"}))


def grpc_target(port: int, message: bytes = b"short") -> LoadTarget:
    return LoadTarget("grpc", port, grpc_call(METHOD, message))


def wait_for(loadgen: Path, port: int) -> None:
    wait_until(lambda: is_open(loadgen, port))


def is_open(loadgen: Path, port: int) -> bool:
    try:
        return run_closed(loadgen, http_target(port), 1, 0.01).succeeded > 0
    except subprocess.CalledProcessError:  # it does not listen yet
        return False


@pytest.mark.parametrize("body", [b"short", LARGE])
def test_closed_loop__http__counts_responses(loadgen: Path, echo_port: int, body: bytes) -> None:
    wait_for(loadgen, echo_port)
    load = run_closed(loadgen, http_target(echo_port, body), 8, 0.2)
    assert load.failed == 0
    assert load.succeeded >= 8
    assert 0 < load.p50_ms <= load.p99_ms < load.seconds * 1e3


@pytest.mark.parametrize("message", [b"short", LARGE])
def test_closed_loop__grpc__counts_responses(loadgen: Path, message: bytes) -> None:
    with grpc_port() as port:
        load = run_closed(loadgen, grpc_target(port, message), 4, 0.3)
    assert load.failed == 0
    assert load.succeeded >= 4


def test_closed_loop__grpc_call_fails__counts_a_failure(loadgen: Path) -> None:
    with grpc_port(rejects=True) as port:
        load = run_closed(loadgen, grpc_target(port), 2, 0.1)
    assert load.succeeded == 0
    assert load.failed >= 2


FIRST = 3
REJECTION = (b" 503 ", b"\r\nRetry-After: ")


@contextmanager
def busy_port(bodies: list[bytes]) -> Iterator[int]:
    """Answer the first requests, then reject with a hint, reject without, and fail, in turn."""
    numbers = itertools.count()

    class Busy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            number = next(numbers) - FIRST
            self.send_response(200 if number < 0 else (503, 503, 400)[number % 3])
            if number % 3 == 0:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"no")

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_open_loop__http__sends_at_random_moments(loadgen: Path, echo_port: int) -> None:
    wait_for(loadgen, echo_port)
    load = run_open(loadgen, http_target(echo_port), 400, 0.5, REJECTION, (FIRST, 50))
    assert set(load.outcome) == {SUCCESS}
    # A Poisson process of 200 requests with a fixed seed.
    assert 150 < len(load.due) < 250
    assert 0 < load.due.min() < load.due.max() < 0.5
    assert np.all((load.late >= 0) & (load.latency > load.late))
    assert FIRST <= load.connections <= 50


def test_open_loop__rejections_and_failures__are_counted_apart(loadgen: Path) -> None:
    with busy_port([]) as port:
        load = run_open(loadgen, http_target(port), 100, 0.6, REJECTION, (FIRST, 3))
    kinds, counts = np.unique(load.outcome, return_counts=True)
    assert list(kinds) == [HINTED, REJECTED, FAILED]
    assert counts.max() - counts.min() <= 1
    assert load.connections == 3


def test_open_loop__grpc__counts_responses(loadgen: Path) -> None:
    with grpc_port() as port:
        load = run_open(loadgen, grpc_target(port), 100, 0.5, (b"no", b"hint"), (FIRST, 50))
    assert set(load.outcome) == {SUCCESS}
    assert len(load.due) > 25


def test_random_fields__every_request__differs_only_there(loadgen: Path) -> None:
    request = post("/", b"id=0000 n=1", {"Host": "test"})
    field = RandomField(request.index(b"0000"), 4, "h")
    bodies: list[bytes] = []
    with busy_port(bodies) as port:
        run_closed(loadgen, LoadTarget("http", port, request, [field]), 1, 0.2)
    assert len(set(bodies)) > 1
    assert all(len(body) == 11 and body[:3] == b"id=" and body[7:] == b" n=1" for body in bodies)
    assert all(int(body[3:7], 16) >= 0 for body in bodies)
