"""Whether a server's memory and latency stay flat: `make soak`, 30 minutes or SOAK_SECONDS.

A server with two workers under everything at once that clients do: V2 binary, JSON and gRPC,
bad requests, clients that leave before their answer, bursts of new connections. Memory is
the resident set of each process; the run fails if that of any grows by more than a tenth
after the first fifth of the time, or if a good request fails.
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
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import ROOT
from benchmarks.tiny import FEATURES, requests
from services.protocol.messages import SERVICE, methods
from tests.support.bundles import make_bundle
from tests.support.serving import Server, launch, running
from tests.support.wait import wait_until

WORKERS = 2
SECONDS = 1800.0
SAMPLES = 30
GROWTH = 0.10
# Each client asks once in so many seconds: what is held for a while follows the rate.
PERIOD = 0.04
# The first part of the run fills caches, pools and the allocator's arenas.
SETTLED = 0.2
BAD = (
    b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\nnot JSON!",
    b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: s\r\nContent-Length: 999999999\r\n\r\n",
    b"GET /v2/models/tiny/infer HTTP/1.1\r\nHost: s\r\n\r\n",
    b"\x16\x03\x01 this is no HTTP\r\n\r\n",
)
BURST = 64
# What a worker logs before it takes requests.
READY = "Completed async startup hook"
Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment `at` seconds into the run: MiB by process, and what was asked since the last."""

    at: float
    rss: dict[int, float]
    answered: int
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Tally:
    """What the clients saw since the last sample, and all that went wrong."""

    end: float
    latencies: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def going(self) -> bool:
        return time.perf_counter() < self.end


def judge(samples: Sequence[Sample], failures: int) -> list[str]:
    """Why the run fails; nothing if it does not. A process must be there from first to last.

    A process's growth is that of the median of its last fifth over that of the second.
    """
    found = [f"{failures} good requests failed"] if failures else []
    settled = [each for each in samples if each.at > SETTLED * samples[-1].at] if samples else []
    if len(settled) < 4:
        return [*found, "the run was too short to tell"]
    part = max(1, len(settled) // 4)
    for pid in sorted({pid for each in settled for pid in each.rss}):
        sizes = [each.rss[pid] for each in settled if pid in each.rss]
        if len(sizes) < len(settled):
            found.append(f"process {pid} did not live through the run")
            continue
        before, after = median(sizes[:part]), median(sizes[-part:])
        if after > before * (1 + GROWTH):
            found.append(f"process {pid} grew from {before:.0f} to {after:.0f} MiB")
    return found


async def keep_asking(port: int, request: bytes, name: str, tally: Tally) -> None:
    """One connection that is kept, and asked at an even pace."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while tally.going:
        start = time.perf_counter()
        writer.write(request)
        status = await read_answer(reader)
        tally.latencies.append(time.perf_counter() - start)
        tally.done[name] += 1
        if status != 200:
            tally.failures[f"{name}: {status}"] += 1
        await asyncio.sleep(start + PERIOD - time.perf_counter())
    writer.close()


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, which is read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().index(b"content-length: ") + 16
    await reader.readexactly(int(head[length : head.index(b"\r", length)]))
    return int(head.split()[1])


async def ask_grpc(port: int, row: np.ndarray, tally: Tally) -> None:
    """One channel that is kept."""
    method = methods()["ModelInfer"]
    request = method.request(model_name="tiny")
    request.inputs.add(name="x", datatype="FP32", shape=list(row.shape))
    request.raw_input_contents.append(row.tobytes())
    content = request.SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        while tally.going:
            start = time.perf_counter()
            try:
                await call(content, timeout=10)
            except grpc.aio.AioRpcError as error:
                tally.failures[f"gRPC: {error.code().name}"] += 1
            tally.latencies.append(time.perf_counter() - start)
            tally.done["gRPC"] += 1
            await asyncio.sleep(start + PERIOD - time.perf_counter())


async def repeat(step: Step, name: str, pause: float, tally: Tally) -> None:
    """`step` again and again, for what needs no good answer."""
    while tally.going:
        await step()
        tally.done[name] += 1
        await asyncio.sleep(pause)


async def leave(port: int, request: bytes) -> None:
    """Ask, and go before the answer; every other time in the middle of the body."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request if time.time_ns() & 1 else request[:-7])
    await writer.drain()
    writer.transport.abort()


async def misbehave(port: int) -> None:
    """Each of the bad requests, on a connection of its own."""
    for request in BAD:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        await reader.read()
        writer.close()


async def burst(port: int, request: bytes, tally: Tally) -> None:
    """Many new connections at the same moment, one request on each."""

    async def once() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        status = await read_answer(reader)
        if status != 200:
            tally.failures[f"burst: {status}"] += 1
        writer.close()

    await asyncio.gather(*(once() for _ in range(BURST)))


def resident(pid: int) -> dict[int, float]:
    """MiB of the process and those below it."""
    parent = psutil.Process(pid)
    tree = (parent, *parent.children(recursive=True))
    return {each.pid: each.memory_info().rss / (1 << 20) for each in tree}


async def sample(server: Server, tally: Tally, seconds: float) -> list[Sample]:
    """A sample at the end of each of `SAMPLES` equal parts."""
    found: list[Sample] = []
    start = tally.end - seconds
    for number in range(1, SAMPLES + 1):
        await asyncio.sleep(start + number * seconds / SAMPLES - time.perf_counter())
        p50, p99 = np.percentile(tally.latencies or [0.0], [50, 99]) * 1e3
        at = time.perf_counter() - start
        rss = resident(server.process.pid)
        found.append(Sample(at, rss, len(tally.latencies), float(p50), float(p99)))
        tally.latencies.clear()
    return found


async def soak(server: Server, seconds: float) -> tuple[list[Sample], Tally]:
    """The whole load for `seconds`."""
    row = np.linspace(0, 1, FEATURES, dtype=np.float32)[None]
    ways = requests(row)
    tally = Tally(time.perf_counter() + seconds)
    port, binary = server.port, ways["V2 binary"]
    clients = [
        *(keep_asking(port, ways[name], name, tally) for name in ways for _ in range(4)),
        *(ask_grpc(server.grpc_port, row, tally) for _ in range(2)),
        repeat(lambda: leave(port, binary), "left", 0.05, tally),
        repeat(lambda: misbehave(port), "bad", 0.1, tally),
        repeat(lambda: burst(port, binary, tally), "burst", 2.0, tally),
    ]
    async with asyncio.TaskGroup() as group:
        samples = group.create_task(sample(server, tally, seconds))
        for client in clients:
            group.create_task(client)
    return samples.result(), tally


def show(console: Console, samples: Sequence[Sample], tally: Tally) -> None:
    """The table, and what was done."""
    pids = sorted({pid for each in samples for pid in each.rss})
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("s", *(f"MiB of {pid}" for pid in pids), "answered", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for each in samples:
        sizes = [f"{each.rss[pid]:.0f}" if pid in each.rss else "-" for pid in pids]
        times = (f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}")
        table.add_row(f"{each.at:.0f}", *sizes, str(each.answered), *times)
    console.print(table)
    console.print(", ".join(f"{name} {count}" for name, count in tally.done.items()))


def main() -> None:
    """Run, print, and exit with 1 if the server did not stay as it was."""
    seconds = float(os.environ.get("SOAK_SECONDS") or SECONDS)
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="mlctl-soak-") as name:
        folder = Path(name)
        bundle = make_bundle(folder / "model", features=FEATURES)
        variables = {"MLCTL_BUNDLE": str(bundle.root), "MLCTL_WORKERS": str(WORKERS)}
        server = launch(
            "services.service:service",
            folder / "log",
            cwd=ROOT,
            bento_home=folder / "bentoml",
            environment=variables,
        )
        with running(server):
            wait_until(lambda: server.log.read_text().count(READY) == WORKERS, what="all are ready")
            samples, tally = uvloop.run(soak(server, seconds))
    show(console, samples, tally)
    reasons = judge(samples, tally.failures.total())
    for reason in (*reasons, *(f"{name}: {count}" for name, count in tally.failures.items())):
        console.print(f"FAILED {reason}")
    sys.exit(1 if reasons else 0)


if __name__ == "__main__":
    main()
