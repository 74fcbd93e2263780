"""A server of two workers while something fails: one test per fault of docs/faults.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pyarrow import parquet

from mlctl.core.ports import free_ports
from tests.support.fault_clients import (
    TEXT,
    TOTAL,
    Load,
    RawClient,
    answered_by,
    burst,
    is_answer,
    open_channel,
    send_grpc,
    send_http,
)
from tests.support.fault_server import QUEUE_ROWS, WORKERS, FaultServer, serve
from tests.support.faulty_os import FaultyOs
from tests.support.serving import Server
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.serial]

DAY_SECONDS = 86_400
# The connection closed before a response came, so the client may send the request again.
RETRYABLE = {"http RemoteProtocolError", "http ReadError", "http WriteError", "grpc UNAVAILABLE"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with serve(tmp_path_factory.mktemp("served")) as ready:
        yield ready


@pytest.fixture
def served(shared: FaultServer) -> FaultServer:
    """The server, with all workers: the test before may have killed one."""
    wait_until(lambda: len(shared.workers()) == WORKERS, what="all workers serve")
    return shared


@pytest.fixture
def workers(served: FaultServer) -> set[int]:
    """The workers at the beginning of the test."""
    return served.workers()


@pytest.fixture
def faulty_os(served: FaultServer) -> Iterator[FaultyOs]:
    if served.system is None:
        pytest.skip("no C compiler (cc) for the library that makes the clock and the disk fail")
    yield served.system
    served.system.step_clock(0)
    served.system.leave_room(None)


@pytest.fixture
def slow_clients(served: FaultServer) -> Iterator[Callable[[], list[RawClient]]]:
    """Start clients that wait for a slow answer, more than run at once, so some are queued."""
    with ExitStack() as connections:

        def start() -> list[RawClient]:
            # Three batches per worker: a queue is seen by the other worker after a second.
            clients = [
                connections.enter_context(RawClient(served.server, "slow")) for _ in range(40)
            ]
            for client in clients:
                client.send_first_half()
                client.send_second_half()
            wait_until(lambda: queued_rows(served) > 0, what="requests wait for the model")
            return clients

        yield start


def queued_rows(served: FaultServer) -> float:
    return served.metric("mlctl_queue_rows")


def check_answers(served: FaultServer, text: str, times: int = 1) -> None:
    for _ in range(times):
        response = served.send(text)
        assert is_answer(response, text), response.text


def check_error(done: subprocess.CompletedProcess[str], exit_code: int, *messages: str) -> None:
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for message in messages:
        assert message in done.stderr


def test_metrics__two_workers_answer__each_reports_the_sum(served: FaultServer) -> None:
    line = 'mlctl_requests_total{model="text",outcome="invalid_input"'  # by this test only
    names = set()
    for count in range(1, 10_000):
        response = served.send("")
        assert response.json()["code"] == "invalid_input"
        names.add(answered_by(response))
        if len(names) == WORKERS and count >= 20:
            break
    assert len(names) == WORKERS
    wait_until(lambda: all(served.metric(line) == count for _ in range(8)), what="equal sums")


def test_worker__killed_under_load__is_replaced_and_clients_may_retry(
    served: FaultServer, workers: set[int]
) -> None:
    known = served.worker_names()
    victim = min(workers)

    def new_worker_answers() -> bool:
        response = served.send(TEXT)
        assert is_answer(response, TEXT), "a worker that is not ready answered"
        return answered_by(response) not in known

    with Load(served.server) as load:
        load.wait_for_answers(100)
        os.kill(victim, signal.SIGKILL)
        load.wait_for_answers(100)
        wait_until(lambda: len(served.workers()) == WORKERS, what="the worker is replaced")
        failed = len(load.failures)
        wait_until(new_worker_answers, what="the new worker answers")
        assert load.failures[failed:] == []
    # A client has one open request, and its next connection may still reach the dying process.
    assert len(load.failures) <= 2 * load.clients
    assert set(load.failures) <= RETRYABLE
    # The victim's counters are kept, its gauges are not.
    assert queued_rows(served) >= 0
    (folder,) = {psutil.Process(pid).environ()["MLCTL_COUNTS_DIR"] for pid in served.workers()}
    gauges = {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*")}
    assert victim not in gauges
    assert Path(folder, f"counter_{victim}.db").exists()


def test_worker__model_hangs__ends_with_a_stack_and_is_replaced(
    served: FaultServer, workers: set[int]
) -> None:
    response = served.send("stuck")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    # Until it is gone, it accepts connections.
    wait_until(lambda: len(workers & served.children()) == WORKERS - 1, what="the worker ended")
    check_answers(served, "one", times=20)
    wait_until(lambda: len(served.workers()) == WORKERS, what="the worker is replaced")
    log = served.server.log.read_text()
    assert "the model hangs; this worker ends" in log
    assert "preprocess" in log


def test_request__more_memory_than_there_is__fails_alone(
    served: FaultServer, workers: set[int]
) -> None:
    with Load(served.server) as load:
        load.wait_for_answers(20)
        for _ in range(5):
            response = served.send("huge")
            assert (response.status_code, response.json()["code"]) == (500, "internal")
            assert "ran out of memory on these inputs" in response.json()["error"]
        load.wait_for_answers(20)
    assert load.failures == []
    assert served.workers() == workers


def test_bundle__changes_on_disk__server_goes_on_and_verify_names_the_file(
    served: FaultServer, tmp_path: Path
) -> None:
    path = served.bundle.root / "model.onnx"
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    check_answers(served, TEXT)
    try:
        path.write_bytes(changed)
        check_answers(served, TEXT, times=10)
        done = served.mlctl(tmp_path, "verify", str(served.bundle.root))
    finally:
        path.write_bytes(content)
    expected = "file 'model.onnx' does not have the sha256 of the manifest"
    check_error(done, 4, expected, "Rebuild it from the registry")
    assert served.mlctl(tmp_path, "verify", str(served.bundle.root)).returncode == 0


def test_registry__unreachable__server_answers_and_command_names_the_address(
    served: FaultServer, tmp_path: Path
) -> None:
    environment = {
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_ports(1)[0]}",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # by default MLflow tries for minutes
    }
    done = served.mlctl(tmp_path, "models", environment=environment)
    expected = "no MLflow registry answers at http://127.0.0.1:"
    check_error(done, 12, expected, "Check MLFLOW_TRACKING_URI")
    check_answers(served, "one")


def test_disk__full__server_loses_log_lines_and_batch_resumes(
    served: FaultServer, faulty_os: FaultyOs, tmp_path: Path
) -> None:
    rows = range(10_000)
    table, out = tmp_path / "in.jsonl", faulty_os.disk / "out"
    table.write_text("".join(json.dumps({"id": row, "text": TEXT}) + "\n" for row in rows))
    batch = ["batch", "run", str(served.bundle.root), "--in", str(table), "--out", str(out)]
    batch += ["--keep", "id", "--patience", "0"]

    check_answers(served, "one")
    faulty_os.leave_room(0)
    check_answers(served, "one", times=20)
    # Enough for the server's log and the job's record (0.5 kB), not for its part (35 kB).
    faulty_os.leave_room(16_000)
    check_error(
        served.mlctl(tmp_path, *batch), 13, "there is no space left for", "run the same command"
    )

    faulty_os.leave_room(None)
    done = served.mlctl(tmp_path, *batch)
    assert done.returncode == 0, done.stderr
    written = parquet.read_table(out, partitioning=None)
    assert sorted(written["id"].to_pylist()) == list(rows)
    assert set(written["total"].to_pylist()) == {TOTAL}
    request_id = served.send("one").headers["x-request-id"]
    log = faulty_os.disk / "access.log"
    wait_until(lambda: request_id in log.read_text(), what="the log has the request")
    assert 200 in [json.loads(line)["status"] for line in log.read_text().splitlines()]


def test_clients__stop_halfway__delay_no_others_and_get_their_answers(
    served: FaultServer,
) -> None:
    with ExitStack() as connections:
        halves = [connections.enter_context(RawClient(served.server, TEXT)) for _ in range(3)]
        for client in halves:
            client.send_first_half()
        with Load(served.server) as load:
            load.wait_for_answers(100)
        assert load.failures == []
        for client in halves:
            client.send_second_half()
            client.check_answer()


def test_clients__disconnect_while_queued__leave_nothing_behind(
    served: FaultServer, workers: set[int], slow_clients: Callable[[], list[RawClient]]
) -> None:
    line = 'mlctl_requests_total{model="text",outcome="gone"'
    before = served.metric(line)
    for client in slow_clients():
        client.__exit__()
    with Load(served.server) as load:
        load.wait_for_answers(100)
    assert load.failures == []
    wait_until(lambda: served.metric(line) >= before + 10, what="disconnects are counted")
    wait_until(lambda: queued_rows(served) == 0, what="the queue is empty")
    assert served.workers() == workers


def test_burst__ten_times_the_queue__rejects_with_retry_after_and_answers_each(
    served: FaultServer, workers: set[int], slow_clients: Callable[[], list[RawClient]]
) -> None:
    rows = 4  # so that several requests share one run of the model
    requests = 10 * QUEUE_ROWS * WORKERS // rows
    slow_clients()
    result = burst(served.server, requests, rows)
    assert result.rejections, "all requests fitted into the queue"
    assert {each.json()["code"] for each in result.rejections} == {"queue_full"}
    assert result.failures == []
    assert result.answers == requests
    wait_until(lambda: queued_rows(served) == 0, what="the queue is empty")
    assert served.workers() == workers


def test_clock__steps_forward_and_back__no_deadline_or_worker_is_affected(
    served: FaultServer,
    workers: set[int],
    faulty_os: FaultyOs,
    slow_clients: Callable[[], list[RawClient]],
) -> None:
    with Load(served.server) as load, RawClient(served.server, TEXT) as half:
        waiting = slow_clients()
        faulty_os.step_clock(3 * DAY_SECONDS)
        for client in waiting:
            client.check_answer()
        half.send_first_half()
        faulty_os.step_clock(-400 * DAY_SECONDS)
        half.send_second_half()
        half.check_answer()
        load.wait_for_answers(50)
    assert load.failures == []
    assert served.workers() == workers

    # The check for dead workers that was due when the clock stepped runs in any case, so the
    # first replacement may be chance; the second is not.
    def is_replaced(victim: int) -> bool:
        current = served.workers()
        return victim not in current and len(current) == WORKERS

    for victim in workers:
        os.kill(victim, signal.SIGKILL)
        wait_until(partial(is_replaced, victim), what="the worker is replaced")


def test_stop__requests_in_flight_on_kept_connections__are_answered(served: FaultServer) -> None:
    """This is the last test of the file: it stops the server that the others share."""
    server = served.server
    with ThreadPoolExecutor(12) as pool, ExitStack() as connections:
        channels = [connections.enter_context(open_channel(server)) for _ in range(4)]
        client, *kept = [connections.enter_context(httpx.Client()) for _ in range(7)]
        for channel in channels:
            send_grpc(channel, "one")
        for each in kept:
            assert is_answer(send_http(each, server, "one"), "one")
        lasting = pool.submit(send_until_closed, client, server)
        enough = threading.Event()
        connections.callback(enough.set)

        def send_slow_requests(send: Callable[[], Any]) -> list[Any]:
            answers = [send()]
            while not enough.is_set():
                answers.append(send())
            return answers

        senders = [partial(send_grpc, channel, "slow") for channel in channels]
        senders += [partial(send_http, each, server, "slow") for each in kept]
        slow = [pool.submit(send_slow_requests, sender) for sender in senders]
        wait_until(lambda: queued_rows(served) > 0, what="requests wait for the model")
        enough.set()
        server.process.send_signal(signal.SIGTERM)
        for sending in slow:
            for answer in sending.result(PATIENCE_SECONDS):
                assert not isinstance(answer, httpx.Response) or is_answer(answer, "slow")
        assert lasting.result(PATIENCE_SECONDS) > 0
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def send_until_closed(client: httpx.Client, server: Server) -> int:
    """Send over one connection until the server announces that it closes it."""
    count = 0
    while True:
        response = send_http(client, server, "one")
        assert is_answer(response, "one")
        count += 1
        if response.headers.get("connection") == "close":
            return count
