"""What a precomputed answer costs inside of a server: SQLite and Redis.

`python -m benchmarks.precomputed [KEYS]`: a generation of a million answers of eight FP32, then
random keys, one or a hundred at once, through the very objects that a worker asks: `lookup` is
what the metric mlctl_precomputed_lookup_seconds counts, `answer` is a request from its keys to its
tensors, without HTTP. One worker and one caller; servers on this machine. About two minutes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from bundle.clock import SystemClock
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.online.models.precomputed import PrecomputedLookup
from services.online.models.precomputed_metrics import PrecomputedMetrics
from services.precomputed.base import GenerationCommit, PrecomputedRow, PrecomputedStore
from services.precomputed.lookup import Lookup
from services.precomputed.row_codec import RowCodec
from services.precomputed.store_urls import open_store
from services.protocol.priority import Priority
from services.protocol.wire import InferRequest
from services.runtime.streaming import Answer
from tests.services.precomputed.servers import redis_server

KEYS = 1_000_000
REQUESTS = 20_000
MANY = 100
DIGEST = "d" * 64
_PUT = 50_000
_TIMEOUT = 1.0
_OUTPUT = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 8))
_WARM = 500


@dataclass(frozen=True, slots=True)
class Figures:
    """One store: keys written per second, and microseconds of one key and of a hundred."""

    written: float
    lookup: np.ndarray
    answer: np.ndarray
    many: np.ndarray


def fill(store: PrecomputedStore, keys: int) -> float:
    """Write a generation and make it live; rows per second."""
    codec, now = RowCodec((_OUTPUT,)), time.time()
    number = store.create(DIGEST, now, "bench")
    values = np.random.default_rng(0)
    since = time.monotonic()
    for start in range(0, keys, _PUT):
        count = min(_PUT, keys - start)
        payloads = codec.encode({"y": values.normal(size=(count, 8)).astype(np.float32)})
        rows = [PrecomputedRow(_key(start + i), now, payload) for i, payload in enumerate(payloads)]
        store.commit(number, "bench", GenerationCommit(rows))
    store.seal(number, "bench")
    store.flip(number, now)
    return keys / (time.monotonic() - since)


async def measure(store: PrecomputedStore, written: float, keys: int) -> Figures:
    """Ask random keys, all of which are there."""
    generator = np.random.default_rng(1)
    picked = [_key(each) for each in generator.integers(0, keys, REQUESTS + MANY).tolist()]
    finder = Lookup(store.reader(DIGEST, _TIMEOUT), _TIMEOUT, SystemClock())
    async with _precomputed(finder) as precomputed:
        ones = [picked[index : index + 1] for index in range(REQUESTS)]
        lookup = await _lookups(finder, ones)
        answer = await _answers(precomputed, ones)
        step = max(1, REQUESTS // 1000)
        many = [picked[index : index + MANY] for index in range(0, REQUESTS, step)]
        return Figures(written, lookup, answer, await _lookups(finder, many))


async def _lookups(finder: Lookup, requests: Sequence[Sequence[str]]) -> np.ndarray:
    seconds = []
    for keys in requests:
        start = time.perf_counter()
        found = finder.find(keys) if finder.quick else await finder.find_on_thread(keys)
        seconds.append(time.perf_counter() - start)
        assert None not in found.rows, "a key that was written was not found in time"
    return np.array(seconds[_WARM if len(seconds) > 10 * _WARM else 0 :]) * 1e6


async def _answers(precomputed: PrecomputedLookup, requests: Sequence[Sequence[str]]) -> np.ndarray:
    seconds = []
    for keys in requests:
        request = InferRequest("", {}, {"y": True}, keys=tuple(keys))
        start = time.perf_counter()
        answer = await precomputed.ask(request, _TIMEOUT, Priority.NORMAL)
        seconds.append(time.perf_counter() - start)
        assert answer.outputs["y"].shape == (len(keys), 8)
    return np.array(seconds[_WARM:]) * 1e6


@asynccontextmanager
async def _precomputed(finder: Lookup) -> AsyncIterator[PrecomputedLookup]:
    def submit(*_request: object) -> asyncio.Future[Answer]:
        raise AssertionError("every key is there, so the model is not asked")

    meter = PrecomputedMetrics("bench", CollectorRegistry())
    precomputed = PrecomputedLookup(RowCodec((_OUTPUT,)), finder, submit, meter, SystemClock())
    try:
        yield precomputed
    finally:
        await precomputed.drain()


def _key(number: int) -> str:
    return f"customer-{number:09}"


def table(folder: Path, keys: int) -> Table:
    """Both stores, one after the other."""
    shown = Table(title=f"{keys:,} keys, microseconds")
    columns = ("Store", "keys/s written", "lookup p50", "p99", "answer p50", "p99", "100 keys p50")
    for name in columns:
        shown.add_column(name, justify="left" if name == "Store" else "right")
    with ExitStack() as stack:
        places = {
            "SQLite": str(folder / "stores"),
            "Redis": stack.enter_context(redis_server(folder)).url,
        }
        for name, place in places.items():
            store = open_store("bench", place)
            figures = asyncio.run(measure(store, fill(store, keys), keys))
            store.close()
            shown.add_row(name, f"{figures.written:,.0f}", *_cells(figures))
    return shown


def _cells(figures: Figures) -> list[str]:
    pairs = [np.percentile(each, (50, 99)) for each in (figures.lookup, figures.answer)]
    numbers = [*pairs[0], *pairs[1], np.median(figures.many)]
    return [f"{number:,.1f}" for number in numbers]


def main() -> None:
    """Print the table."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        os.environ["MLCTL_HOME"] = folder
        Console().print(table(Path(folder), keys))


if __name__ == "__main__":
    main()
