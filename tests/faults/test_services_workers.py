"""Two worker processes on the same ports: one that dies or hangs is replaced, the other goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from services.v2_messages import SERVICE, methods
from tests.support.serving import Server, launch, running
from tests.support.transforms import TOKENIZER, make_text_bundle
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# A model that can be told to take its time, or never to end.
SOURCE = TOKENIZER.replace(
    "def preprocess(inputs):\n",
    "def preprocess(inputs):\n"
    "    for text in inputs['text']:\n"
    "        __import__('time').sleep({b'slow': 0.3, b'stuck': 1e6}.get(text, 0))\n",
)
INFER = methods()["ModelInfer"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("workers")
    bundle = make_text_bundle(folder / "bundle", SOURCE, name="text")
    variables = {
        "MLCTL_BUNDLE": str(bundle.root),
        "MLCTL_WORKERS": "2",
        "MLCTL_HANG_S": "5",
    }
    launched = launch(
        "services.service:service",
        folder / "log",
        cwd=ROOT,
        bento_home=folder / "bentoml",
        environment=variables,
    )
    with running(launched) as ready:
        yield ready


def workers(server: Server) -> set[int]:
    """The processes that serve: those that opened the gRPC port."""
    children = psutil.Process(server.process.pid).children()
    return {child.pid for child in children if listens(child, server.grpc_port)}


def listens(process: psutil.Process, port: int) -> bool:
    try:
        found = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


def http_request(text: str) -> dict[str, Any]:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return {"content": json.dumps({"inputs": [tensor]})}


def ask_http(client: httpx.Client, server: Server, text: str) -> httpx.Response:
    url = f"{server.url}/v2/models/text/infer"
    return client.post(url, **http_request(text), timeout=PATIENCE_SECONDS)


def open_channel(server: Server) -> Any:
    """A connection of its own: channels to one address share one otherwise."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(  # type: ignore[no-untyped-call]
        f"127.0.0.1:{server.grpc_port}", options
    )


def ask_grpc(channel: Any, text: str) -> Any:
    request = INFER.request(model_name="text")
    request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        text.encode()
    )
    call = channel.unary_unary(
        f"/{SERVICE}/ModelInfer",
        request_serializer=INFER.request.SerializeToString,
        response_deserializer=INFER.response.FromString,
    )
    return call(request, timeout=PATIENCE_SECONDS, wait_for_ready=True)


@dataclass(slots=True)
class Seen:
    """What the clients of a load saw: which processes answered, and what failed how."""

    answered_by: set[str] = field(default_factory=set)
    answers: int = 0
    failures: list[str] = field(default_factory=list)


def http_client(server: Server, seen: Seen, stop: threading.Event) -> None:
    with httpx.Client() as client:
        while not stop.is_set():
            try:
                answer = ask_http(client, server, "one two")
            except httpx.TransportError as error:
                seen.failures.append(f"http {type(error).__name__}")
                continue
            if answer.status_code == 200:
                seen.answers += 1
                seen.answered_by.add(answer.headers["x-request-id"].partition("-")[0])
            else:
                seen.failures.append(f"http {answer.status_code}")


def grpc_client(server: Server, seen: Seen, stop: threading.Event) -> None:
    with open_channel(server) as channel:
        while not stop.is_set():
            try:
                ask_grpc(channel, "one two")
                seen.answers += 1
            except grpc.RpcError as error:
                seen.failures.append(f"grpc {error.code().name}")  # type: ignore[attr-defined]


CLIENTS: list[Callable[[Server, Seen, threading.Event], None]] = [http_client] * 4
CLIENTS += [grpc_client] * 2


@contextmanager
def load(server: Server) -> Iterator[Seen]:
    seen, stop = Seen(), threading.Event()
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        running_clients = [pool.submit(client, server, seen, stop) for client in CLIENTS]
        try:
            yield seen
        finally:
            stop.set()
        for client in running_clients:
            client.result(PATIENCE_SECONDS)


def metric(server: Server, line: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return sum(float(each.split()[-1]) for each in text.splitlines() if each.startswith(line))


def test_whoever_is_asked_tells_the_sum_of_all(server: Server) -> None:
    processes: set[str] = set()
    count = 0
    while len(processes) < 2:
        answer = httpx.post(f"{server.url}/v2/models/text/infer", **http_request("one"))
        assert answer.status_code == 200
        processes.add(answer.headers["x-request-id"].partition("-")[0])
        count += 1
        assert count < 10_000
    line = 'mlctl_requests_total{model="text",outcome="ok",protocol="http"}'
    wait_until(lambda: all(metric(server, line) == count for _ in range(8)), what="equal sums")


def test_a_worker_that_is_killed_takes_only_what_it_was_doing_with_it(server: Server) -> None:
    before = workers(server)
    assert len(before) == 2
    victim = min(before)
    with load(server) as seen:
        wait_until(lambda: seen.answers > 100, what="both workers answer")
        os.kill(victim, signal.SIGKILL)
        answers = seen.answers
        wait_until(lambda: seen.answers > answers + 100, what="the other one answers")
        known = set(seen.answered_by)
        wait_until(lambda: len(workers(server)) == 2, what="the dead one is replaced")
        while_replaced = len(seen.failures)

        def fresh() -> bool:
            answer = httpx.post(f"{server.url}/v2/models/text/infer", **http_request("one"))
            assert answer.status_code == 200  # never by one that is not warm
            return answer.headers["x-request-id"].partition("-")[0] not in known

        wait_until(fresh, what="the new one answers")
    retryable = {"http RemoteProtocolError", "http ReadError", "http WriteError"}
    assert set(seen.failures) <= retryable | {"grpc UNAVAILABLE"}
    # Each client has one request open at a time, and its next connection may reach the socket
    # of the process that the kernel is still taking down.
    assert while_replaced == len(seen.failures) <= 2 * len(CLIENTS)
    assert metric(server, "mlctl_queue_rows") >= 0
    (folder,) = {psutil.Process(pid).environ()["MLCTL_COUNTS_DIR"] for pid in workers(server)}
    gauges = {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*")}
    assert victim not in gauges
    assert Path(folder, f"counter_{victim}.db").exists()  # what it counted stays


def test_a_worker_whose_model_hangs_ends_and_is_replaced(server: Server) -> None:
    before = workers(server)
    try:
        with httpx.Client() as client:
            answer = ask_http(client, server, "stuck")
    except httpx.TransportError:
        pytest.fail("whoever waits for a model that hangs is told so")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    wait_until(lambda: len(workers(server) & before) == 1, what="it has ended")
    for _ in range(20):
        again = httpx.post(f"{server.url}/v2/models/text/infer", **http_request("one"))
        assert again.status_code == 200
    wait_until(lambda: len(workers(server)) == 2, what="it is replaced")
    log = server.log.read_text()
    assert "the model hangs; this worker ends" in log
    assert "preprocess" in log  # where it hung


def test_a_stop_answers_what_is_in_flight_over_connections_that_were_kept(server: Server) -> None:
    """The last one here: it ends the server."""
    with ThreadPoolExecutor(12) as pool, ExitStack() as connections:
        channels = [open_channel(server) for _ in range(4)]
        for channel in channels:
            connections.callback(channel.close)
            ask_grpc(channel, "one")
        client, *kept = [connections.enter_context(httpx.Client()) for _ in range(7)]
        for each in kept:
            assert ask_http(each, server, "one").status_code == 200
        lasting = pool.submit(ask_until_closed, client, server)
        enough = threading.Event()
        connections.callback(enough.set)

        def ask_slowly(ask: Callable[[], Any]) -> list[Any]:
            answers = [ask()]
            while not enough.is_set():
                answers.append(ask())
            return answers

        asks = [partial(ask_grpc, channel, "slow") for channel in channels]
        asks += [partial(ask_http, each, server, "slow") for each in kept]
        slow = [pool.submit(ask_slowly, ask) for ask in asks]
        wait_until(lambda: metric(server, "mlctl_queue_rows") > 0, what="they wait for the model")
        enough.set()
        server.process.send_signal(signal.SIGTERM)
        for asking in slow:
            for answer in asking.result(PATIENCE_SECONDS):
                assert not isinstance(answer, httpx.Response) or answer.status_code == 200
        assert lasting.result(PATIENCE_SECONDS) > 0
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def ask_until_closed(client: httpx.Client, server: Server) -> int:
    """Ask again and again over one connection until the server says that it closes it."""
    count = 0
    while True:
        answer = ask_http(client, server, "one")
        assert answer.status_code == 200
        count += 1
        if answer.headers.get("connection") == "close":
            return count
