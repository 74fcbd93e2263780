"""The sentences of the scenarios of faults; docs are in CONTRIBUTING.md, "A fault as a file"."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import httpx
import psutil
from pyarrow import parquet

from rollout.drivers.local.ports import free_ports
from tests.support.fault_clients import (
    TEXT,
    TOTAL,
    Load,
    RudeClient,
    answered_by,
    burst,
    http_request,
    totals,
)
from tests.support.fault_world import QUEUE_ROWS, World
from tests.support.faultkit import Vocabulary
from tests.support.wait import PATIENCE_SECONDS, wait_until

VOCABULARY = Vocabulary()
step = VOCABULARY.step
# What a client may send again without a doubt: the connection went before an answer came.
_RETRYABLE = {"http RemoteProtocolError", "http ReadError", "http WriteError", "grpc UNAVAILABLE"}
_FIRST, _REST, _WHOLE = slice(0, 1), slice(1, 2), slice(0, 2)


# Clients that behave.


@step("start {number} HTTP clients and {number} gRPC clients that ask without pause")
def start(world: World, http: int, over_grpc: int) -> None:
    world.load = Load(world.server, http, over_grpc)


@step("wait for {number} more answers")
def wait_for_answers(world: World, count: int) -> None:
    load = running_load(world)
    enough = load.seen.answers + count
    wait_until(lambda: load.seen.answers >= enough, what="clients are answered")
    answered = set(load.seen.answered_by)
    # On a busy machine a new worker may have answered by now: it is not one that was known.
    if len(world.served.workers() | world.workers) == len(world.workers):
        world.known |= answered


@step("stop the clients")
def stop(world: World) -> None:
    running_load(world).stop()


@step("expect that no client saw a failure")
def no_failures(world: World) -> None:
    assert running_load(world).seen.failures == []


@step("expect that each client saw at most {number} failures, and may send those again")
def few_failures(world: World, most: int) -> None:
    load = running_load(world)
    assert set(load.seen.failures) <= _RETRYABLE
    assert len(load.seen.failures) <= most * load.clients


@step("send {text}")
def send(world: World, text: str) -> None:
    send_times(world, text, 1)


@step("send {text} {number} times")
def send_times(world: World, text: str, times: int) -> None:
    url = f"{world.server.url}/v2/models/text/infer"
    patience = PATIENCE_SECONDS
    world.replies = [httpx.post(url, **http_request(text), timeout=patience) for _ in range(times)]


@step("expect the answer {word}")
def expect_answer(world: World, number: str) -> None:
    for reply in world.replies:
        assert reply.status_code == 200, reply.text
        assert totals(reply) == [float(number)]


@step("expect status {number} with code {word}")
def expect_status(world: World, status: int, code: str) -> None:
    for reply in world.replies:
        assert (reply.status_code, reply.json().get("code")) == (status, code), reply.text


@step("expect the client to be told {text}")
def expect_told(world: World, words: str) -> None:
    for reply in world.replies:
        assert words in reply.json()["error"], reply.text


# Clients that do not, and too many of them.


@step("a client sends half of a request")
def half(world: World) -> None:
    client = RudeClient(world.server)
    world.clients.append(client)
    client.send(TEXT, _FIRST)


@step("each of those clients sends the other half")
def other_half(world: World) -> None:
    for client in world.clients:
        client.send(TEXT, _REST)


@step("expect each of them to be answered")
def each_is_answered(world: World) -> None:
    for client in world.clients:
        answer = client.answer()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert f'"data":[{client.expected}]'.encode() in answer, answer
    leave(world)


@step("{number} clients ask for what is slow")
def ask_for_slow(world: World, count: int) -> None:
    for _ in range(count):
        client = RudeClient(world.server)
        world.clients.append(client)
        client.send("slow", _WHOLE)
    wait_until(lambda: world.served.metric("mlctl_queue_rows") > 0, what="they wait for the model")


@step("those clients leave without their answers")
def leave(world: World) -> None:
    for client in world.clients:
        client.leave()
    world.clients.clear()


@step("wait until the metrics count at least {number} clients that left")
def count_gone(world: World, least: int) -> None:
    line = 'mlctl_requests_total{model="text",outcome="gone"'
    wait_until(lambda: world.served.metric(line) >= least, what="clients that left are counted")


@step("wait until nothing waits for the model")
def wait_for_rest(world: World) -> None:
    wait_until(lambda: world.served.metric("mlctl_queue_rows") == 0, what="nothing waits")


@step("send {number} times as many rows as may wait, all at once")
def send_burst(world: World, times: int) -> None:
    rows, workers = 4, len(world.workers)  # several share one run of the model
    world.burst = burst(world.server, times * QUEUE_ROWS * workers // rows, rows)


@step("expect some to be refused with code {word} and a time to come again")
def some_refused(world: World, code: str) -> None:
    assert world.burst is not None, "no burst was sent"
    assert world.burst.refusals, "all fitted: this was no burst"
    assert {reply.json()["code"] for reply in world.burst.refusals} == {code}


@step("expect every request of them to be answered in the end, each with its own answer")
def all_answered(world: World) -> None:
    assert world.burst is not None, "no burst was sent"
    assert world.burst.wrong == []
    assert world.burst.answers == world.burst.requests


# Workers.


@step("kill a worker")
def kill(world: World) -> None:
    world.victim = min(world.workers)
    os.kill(world.victim, signal.SIGKILL)


@step("kill each worker in its turn; expect another one in its place")
def replaced(world: World) -> None:
    for victim in world.workers:
        os.kill(victim, signal.SIGKILL)
        wait_until(partial(is_replaced, world, victim), what=f"there is another one for {victim}")


def is_replaced(world: World, victim: int) -> bool:
    workers = world.served.workers()
    return victim not in workers and len(workers) == len(world.workers)


@step("wait until a worker has ended")
def wait_for_end(world: World) -> None:
    def ended() -> bool:
        return len(world.served.workers() & world.workers) == len(world.workers) - 1

    wait_until(ended, what="one of the workers is gone")


@step("wait until there are {number} workers")
def wait_for_workers(world: World, count: int) -> None:
    wait_until(lambda: len(world.served.workers()) == count, what=f"{count} workers serve")


@step("wait until the new worker answers; expect no failure till then")
def wait_for_new(world: World) -> None:
    load = running_load(world)
    before = len(load.seen.failures)

    def fresh() -> bool:
        send(world, TEXT)
        expect_answer(world, str(TOTAL))  # never by one that is not warm
        return answered_by(world.replies[0]) not in world.known

    wait_until(fresh, what="the new one answers")
    assert load.seen.failures[before:] == []


@step("expect that the counts of the killed worker are kept, and what it had open is not")
def counts_kept(world: World) -> None:
    served = world.served
    assert served.metric("mlctl_queue_rows") >= 0
    (folder,) = {psutil.Process(pid).environ()["MLCTL_COUNTS_DIR"] for pid in served.workers()}
    gauges = {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*")}
    assert world.victim not in gauges
    assert Path(folder, f"counter_{world.victim}.db").exists()


@step("expect the same workers as before")
def same_workers(world: World) -> None:
    assert world.served.workers() == world.workers


@step("expect the server's log to say {text}")
def log_says(world: World, words: str) -> None:
    assert words in world.server.log.read_text()


# Files, the disk, the clock, the registry.


@step("change one byte of {word} in the bundle that is served")
def change(world: World, name: str) -> None:
    path = world.served.bundle.root / name
    content = bytearray(path.read_bytes())
    world.altered[path] = bytes(content)
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@step("put {word} back")
def put_back(world: World, name: str) -> None:
    path = world.served.bundle.root / name
    path.write_bytes(world.altered.pop(path))


@step("fill the disk, but for {number} bytes")
def fill(world: World, room: int) -> None:
    world.system.leave_room(room)


@step("free the disk")
def free(world: World) -> None:
    world.system.leave_room(None)


@step("expect every line of the access log to be whole")
def lines_whole(world: World) -> None:
    log = world.system.disk / "access.log"
    answered = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    assert 200 in answered


@step("wait until the access log has that request")
def log_has(world: World) -> None:
    log = world.system.disk / "access.log"
    (name,) = [reply.headers["x-request-id"] for reply in world.replies]
    wait_until(lambda: name in log.read_text(), what="the request is in the access log")


@step("step the clock {word} by {number} days")
def step_clock(world: World, way: str, days: int) -> None:
    assert way in {"forward", "back"}, way
    world.system.step_clock(days * 86_400 * (1 if way == "forward" else -1))


@step("take the registry away")
def no_registry(world: World) -> None:
    world.environment["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    # The user's own setting, for a shorter wait: by default MLflow asks three times.
    world.environment["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"


# Commands.


@step("write a table of {number} rows")
def write_table(world: World, rows: int) -> None:
    lines = [json.dumps({"id": row, "text": TEXT}) for row in range(rows)]
    (world.folder / "in.jsonl").write_text("\n".join(lines) + "\n")


@step("run mlctl {rest}")
def run(world: World, arguments: str) -> None:
    places = {
        "BUNDLE": str(world.served.bundle.root),
        "TABLE": str(world.folder / "in.jsonl"),
    }
    if world.served.system is not None:
        places["OUT"] = str(world.system.disk / world.folder.name)
    world.command([places.get(word, word) for word in arguments.split()])


@step("expect exit code {number}")
def exit_code(world: World, code: int) -> None:
    done = finished(world)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"


@step("expect the user to be told {text}")
def told(world: World, words: str) -> None:
    done = finished(world)
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@step("expect each of the {number} rows to be answered once")
def rows_answered(world: World, rows: int) -> None:
    out = world.system.disk / world.folder.name
    found = parquet.read_table(out, partitioning=None)
    assert sorted(found["id"].to_pylist()) == list(range(rows))
    assert set(found["total"].to_pylist()) == {TOTAL}


def running_load(world: World) -> Load:
    assert world.load is not None, "no clients were started"
    return world.load


def finished(world: World) -> subprocess.CompletedProcess[str]:
    assert world.done is not None, "no command was run"
    return world.done
