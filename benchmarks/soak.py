"""Whether a server's memory and latency stay flat: `make soak`, 30 minutes or SOAK_SECONDS.

A server with two workers under all kinds of clients at once: V2 binary, JSON, gRPC and /predict,
bad requests, clients that disconnect before the response, bursts of new connections. The run fails
if the resident set of any process grows by more than a tenth after the first fifth of the time, or
if a good request fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np
import psutil
import uvloop

from benchmarks.protocols import Protocol, bento_protocol
from benchmarks.result import BenchmarkResult, argument_parser, measuring
from benchmarks.servers import Server, mlctl_server, stop, wait_until
from benchmarks.workloads import make_workload

WORKERS = 2
SECONDS = 1800.0
SAMPLES = 30
GROWTH = 0.10
# Seconds between the requests of a client.
PERIOD = 0.04
# The share of the run that fills caches, pools and the allocator's arenas.
SETTLED = 0.2
BAD = (
    b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\nnot JSON!",
    b"POST /v2/models/unknown/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 999999999\r\n\r\n",
    b"GET /v2/models/bench/infer HTTP/1.1\r\nHost: s\r\n\r\n",
    b"\x16\x03\x01 not HTTP\r\n\r\n",
)
BURST = 64
# A worker logs it before it accepts requests.
READY = "Completed async startup hook"
Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sample:
    """`at` seconds into the run: MiB by process, and the requests since the last sample."""

    at: float
    rss: dict[int, float]
    answered: int
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class SoakTally:
    """Latencies since the last sample; requests and failures since the start."""

    end: float
    latencies: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def running(self) -> bool:
        return time.perf_counter() < self.end


def judge(samples: Sequence[Sample], failures: int) -> list[str]:
    """Return why the run fails; empty if it passes.

    A process must live from the first to the last sample. Its growth is the median of the last
    fifth of the run over that of the second fifth.
    """
    found = [f"{failures} good requests failed"] if failures else []
    settled = [each for each in samples if each.at > SETTLED * samples[-1].at] if samples else []
    if len(settled) < 4:
        return [*found, "the run was too short to judge"]
    part = max(1, len(settled) // 4)
    for pid in sorted({pid for each in settled for pid in each.rss}):
        sizes = [each.rss[pid] for each in settled if pid in each.rss]
        if len(sizes) < len(settled):
            found.append(f"process {pid} did not live for the whole run")
            continue
        before, after = median(sizes[:part]), median(sizes[-part:])
        if after > before * (1 + GROWTH):
            found.append(f"process {pid} grew from {before:.0f} to {after:.0f} MiB")
    return found


async def send_http(port: int, request: bytes, name: str, tally: SoakTally) -> None:
    """Send `request` at an even pace on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while tally.running:
        start = time.perf_counter()
        writer.write(request)
        status = await read_response(reader)
        tally.latencies.append(time.perf_counter() - start)
        tally.done[name] += 1
        if status != 200:
            tally.failures[f"{name}: {status}"] += 1
        await asyncio.sleep(start + PERIOD - time.perf_counter())
    writer.close()


async def read_response(reader: asyncio.StreamReader) -> int:
    """Read one response; return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().index(b"content-length: ") + 16
    await reader.readexactly(int(head[length : head.index(b"\r", length)]))
    return int(head.split()[1])


async def send_grpc(port: int, protocol: Protocol, tally: SoakTally) -> None:
    """Call the model at an even pace on one channel."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(protocol.path)
        while tally.running:
            start = time.perf_counter()
            try:
                await call(protocol.body, timeout=10)
            except grpc.aio.AioRpcError as error:
                tally.failures[f"gRPC: {error.code().name}"] += 1
            tally.latencies.append(time.perf_counter() - start)
            tally.done["gRPC"] += 1
            await asyncio.sleep(start + PERIOD - time.perf_counter())


async def repeat(step: Step, name: str, pause: float, tally: SoakTally) -> None:
    """Repeat `step`, whose response is not checked."""
    while tally.running:
        await step()
        tally.done[name] += 1
        await asyncio.sleep(pause)


async def disconnect_early(port: int, request: bytes) -> None:
    """Disconnect before the response, half of the times in the middle of the body."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request if time.time_ns() & 1 else request[:-7])
    await writer.drain()
    writer.transport.abort()


async def send_bad_requests(port: int) -> None:
    """Send each bad request on its own connection."""
    for request in BAD:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        await reader.read()
        writer.close()


async def burst(port: int, request: bytes, tally: SoakTally) -> None:
    """Open many connections at once and send one request on each."""

    async def once() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        status = await read_response(reader)
        if status != 200:
            tally.failures[f"burst: {status}"] += 1
        writer.close()

    await asyncio.gather(*(once() for _ in range(BURST)))


def resident(pid: int) -> dict[int, float]:
    """Return the MiB of the process and of each descendant."""
    parent = psutil.Process(pid)
    tree = (parent, *parent.children(recursive=True))
    return {each.pid: each.memory_info().rss / (1 << 20) for each in tree}


async def sample(pid: int, tally: SoakTally, seconds: float) -> list[Sample]:
    """Return a sample at the end of each of `SAMPLES` equal parts."""
    found: list[Sample] = []
    start = tally.end - seconds
    for number in range(1, SAMPLES + 1):
        await asyncio.sleep(start + number * seconds / SAMPLES - time.perf_counter())
        p50, p99 = np.percentile(tally.latencies or [0.0], [50, 99]) * 1e3
        at = time.perf_counter() - start
        rss = resident(pid)
        found.append(Sample(at, rss, len(tally.latencies), float(p50), float(p99)))
        tally.latencies.clear()
    return found


async def soak(
    server: Server, pid: int, predict: Protocol, seconds: float
) -> tuple[list[Sample], SoakTally]:
    """Run the whole load for `seconds`."""
    tally = SoakTally(time.perf_counter() + seconds)
    port = server.port
    http = [*(each for each in server.protocols if each.transport == "http"), predict]
    requests = {each.name: each.target(port).request for each in http}
    (rpc,) = (each for each in server.protocols if each.transport == "grpc")
    binary = requests["V2 binary"]
    clients = [
        *(
            send_http(port, request, name, tally)
            for name, request in requests.items()
            for _ in "1234"
        ),
        *(send_grpc(server.grpc_port, rpc, tally) for _ in "12"),
        repeat(lambda: disconnect_early(port, binary), "disconnected", 0.05, tally),
        repeat(lambda: send_bad_requests(port), "bad", 0.1, tally),
        repeat(lambda: burst(port, binary, tally), "burst", 2.0, tally),
    ]
    async with asyncio.TaskGroup() as group:
        samples = group.create_task(sample(pid, tally, seconds))
        for client in clients:
            group.create_task(client)
    return samples.result(), tally


def report(samples: Sequence[Sample], tally: SoakTally, result: BenchmarkResult) -> None:
    """Add the tables of the samples and of the requests."""
    pids = sorted({pid for each in samples for pid in each.rss})
    names = (f"process {number}, MiB" for number in range(1, len(pids) + 1))
    table = result.table("soak", "s", *names, "answered", "p50 ms", "p99 ms")
    for each in samples:
        sizes = (each.rss.get(pid, "") for pid in pids)
        table.add(f"{each.at:.0f}", *sizes, each.answered, each.p50_ms, each.p99_ms)
    counts = result.table("requests", "kind", "count", "failed")
    for name, count in tally.done.items():
        failed = sum(n for key, n in tally.failures.items() if key.startswith(f"{name}:"))
        counts.add(name, count, failed)


def main() -> None:
    """Run; exit with 1 if the run fails."""
    options = argument_parser("soak", __doc__).parse_args()
    seconds = float(os.environ.get("SOAK_SECONDS") or SECONDS)
    with (
        measuring("soak", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-soak-") as name,
    ):
        workload = make_workload("tiny", Path(name) / "model")
        server = mlctl_server(workload, Path(name), workers=WORKERS)
        process = server.start()
        try:
            log = server.folder / "log"
            wait_until(lambda: log.read_text().count(READY) == WORKERS, "all workers")
            predict = bento_protocol(workload)
            samples, tally = uvloop.run(soak(server, process.pid, predict, seconds))
        finally:
            stop(process)
        report(samples, tally, result)
    reasons = judge(samples, tally.failures.total())
    for reason in (*reasons, *(f"{name}: {count}" for name, count in tally.failures.items())):
        print(f"FAILED {reason}")
    sys.exit(1 if reasons else 0)


if __name__ == "__main__":
    main()
