"""Requests with entity keys: answered from the store, and by the model where it has nothing.

Only rows without a fresh answer go to the model, and the answer has all in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from services.batching.admission import deadline_exceeded
from services.hybrid.base import Row
from services.hybrid.finding import Finder, Found
from services.hybrid.flights import Flights, Landing
from services.hybrid.meter import DOWN, FOREIGN, HIT, JOINED, MISS, STALE, HybridMeter
from services.hybrid.places import open_store
from services.hybrid.rows import RowCodec
from services.hybrid.writing import WriteBack
from services.lanes import Priority
from services.runtime.padding import Arrays
from services.streaming import Answer
from services.v2.wire import InferRequest, invalid, shown

if TYPE_CHECKING:
    from services.batching.shell import Batching
    from services.host import ModelHost

Submit = Callable[[Arrays, float, Priority], asyncio.Future[Answer]]


class Hybrid:
    """Precomputed answers of one model in one worker; `ttl` in seconds."""

    def __init__(
        self,
        codec: RowCodec,
        finder: Finder,
        submit: Submit,
        meter: HybridMeter,
        clock: Clock,
        *,
        ttl: float | None = None,
        back: WriteBack | None = None,
    ) -> None:
        self._codec = codec
        self._finder = finder
        self._submit = submit
        self._meter = meter
        self._clock = clock
        self._ttl = ttl
        self._back = back
        self._flights = Flights()
        self._tasks: set[asyncio.Task[Answer]] = set()

    def ask(
        self, request: InferRequest, timeout: float, priority: Priority
    ) -> asyncio.Future[Answer]:
        """The answer to a request with keys, within `timeout` seconds; cancel it to leave.

        Raises INVALID_INPUT at once if the keys do not fit the inputs. The future fails with
        KEY_NOT_FOUND where neither the store nor the model can answer.
        """
        _check_rows(request)
        loop = asyncio.get_running_loop()
        if not self._finder.quick:
            return self._open(self._look(request, timeout, priority))
        start = perf_counter()
        found = self._fresh(self._finder.find(request.keys))
        seconds = perf_counter() - start
        self._meter.looked_up(seconds)
        if None in found.rows:
            return self._open(self._fill(request, found, timeout, priority))
        future: asyncio.Future[Answer] = loop.create_future()
        future.set_result(self._whole(found.rows, seconds))
        return future

    async def drain(self) -> None:
        """Wait for the requests that are here, and for what is to be written; then end."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._back is not None:
            await self._back.close()
        await asyncio.to_thread(self._finder.close)

    def _open(self, answer: Coroutine[Any, Any, Answer]) -> asyncio.Future[Answer]:
        task = asyncio.get_running_loop().create_task(answer)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look(self, request: InferRequest, limit: float, priority: Priority) -> Answer:
        start = perf_counter()
        found = self._fresh(await self._finder.find_apart(request.keys))
        seconds = perf_counter() - start
        self._meter.looked_up(seconds)
        if None not in found.rows:
            return self._whole(found.rows, seconds)
        return await self._fill(request, found, limit - seconds, priority)

    def _fresh(self, found: Found) -> Found:
        """Without the rows that are too old, or no rows of this model; counted."""
        rows, stale = found.rows, 0
        strange = [i for i, row in enumerate(rows) if row and not self._codec.fits(row.payload)]
        for index in strange:
            rows[index] = None
        if self._ttl is not None:
            oldest = self._clock.wall() - self._ttl
            for index, row in enumerate(rows):
                if row is not None and row.at < oldest:
                    rows[index] = None
                    stale += 1
        absent = rows.count(None)
        self._meter.count(HIT, len(rows) - absent)
        self._meter.count(STALE, stale)
        self._meter.count(FOREIGN, len(strange))
        self._meter.count(DOWN if found.down else MISS, absent - stale - len(strange))
        return found

    def _whole(self, rows: Sequence[Row | None], seconds: float) -> Answer:
        """The answer of rows that all are there."""
        there = [row for row in rows if row is not None]
        age = max(0.0, self._clock.wall() - min(row.at for row in there))
        outputs = self._codec.decode([row.payload for row in there])
        said: dict[str, str | float] = {"source": "precomputed", "age_s": round(age, 3)}
        return Answer(outputs, 0.0, seconds, 0, said)

    async def _fill(
        self, request: InferRequest, found: Found, limit: float, priority: Priority
    ) -> Answer:
        """The answer once every row is there, from the model or from another's run of it."""
        loop = asyncio.get_running_loop()
        rows, end = list(found.rows), loop.time() + limit
        ran = Answer({}, 0.0, 0.0, 0)
        try:
            async with asyncio.timeout_at(end):
                while None in rows:
                    missing = [index for index, row in enumerate(rows) if row is None]
                    joined, own = self._shared(request, missing)
                    if own:
                        left = end - loop.time()
                        ran = await self._run(request, own, rows, left, priority, found.down)
                    for index, landing in joined.items():
                        rows[index] = await asyncio.shield(landing)
        except TimeoutError:
            raise deadline_exceeded() from None
        return self._mixed(found, rows, ran)

    def _shared(
        self, request: InferRequest, missing: Sequence[int]
    ) -> tuple[dict[int, Landing], list[int]]:
        """The rows that another request's run will have, and those that are ours to ask for."""
        joined: dict[int, Landing] = {}
        for index in missing:
            landing = self._flights.find(request.keys[index], request.inputs, index)
            if landing is not None:
                joined[index] = landing
        self._meter.count(JOINED, len(joined))
        return joined, [index for index in missing if index not in joined]

    async def _run(
        self,
        request: InferRequest,
        own: list[int],
        rows: list[Row | None],
        limit: float,
        priority: Priority,
        down: bool,
    ) -> Answer:
        """Ask the model for the rows at `own`, and put them into `rows`."""
        if not request.inputs:
            raise _not_there(request.keys[own[0]], down=down)
        keys, inputs = request.keys, request.inputs
        if len(own) < len(keys):
            inputs = {name: array[own] for name, array in inputs.items()}
        with self._flights.run(keys, request.inputs, own) as landed:
            answer = await self._submit(inputs, limit, priority)
            payloads = self._codec.encode(answer.outputs)
            now = self._clock.wall()
            landed += [Row(keys[i], now, data) for i, data in zip(own, payloads, strict=True)]
        for index, row in zip(own, landed, strict=True):
            rows[index] = row
        if self._back is not None and not down:
            self._back.put(landed)
        return answer

    def _mixed(self, found: Found, rows: Sequence[Row | None], ran: Answer) -> Answer:
        outputs = self._codec.decode([row.payload for row in rows if row is not None])
        stored = [row for row in found.rows if row is not None]
        said: dict[str, str | float] = {"source": "online", "age_s": 0.0}
        if stored:
            age = self._clock.wall() - min(row.at for row in stored)
            said = {"source": "mixed", "age_s": round(age, 3), "precomputed_rows": len(stored)}
        return Answer(outputs, ran.queue_seconds, ran.infer_seconds, ran.batch_rows, said)


def open_hybrid(
    host: ModelHost, batching: Batching, clock: Clock, registry: CollectorRegistry
) -> Hybrid | None:
    """What answers the host's requests with keys; None if nothing is precomputed for it.

    UNSUPPORTED_MODEL for a model whose answers cannot be.
    """
    settings = host.settings
    if settings.hybrid is None:
        return None
    if not batching.limits.joinable:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"model {host.name!r} takes no row by itself, so none can be answered beforehand",
            "Serve it without MLCTL_HYBRID.",
        )
    codec = RowCodec(host.signature.outputs)
    store = open_store(settings.hybrid, settings.hybrid_store)
    timeout = settings.hybrid_timeout_ms / 1000
    meter = HybridMeter(host.name, registry)
    finder = Finder(store.reader(host.digest, timeout), timeout, clock)
    back = None
    if settings.hybrid_write_back:
        back = WriteBack(store, host.digest, meter, finder.written)
    return Hybrid(
        codec, finder, batching.submit, meter, clock, ttl=settings.hybrid_ttl_s, back=back
    )


def _check_rows(request: InferRequest) -> None:
    """INVALID_INPUT unless each row has a key."""
    count = len(request.keys)
    for name, array in request.inputs.items():
        if not array.ndim or array.shape[0] != count:
            rows = array.shape[0] if array.ndim else 0
            raise invalid(f"tensor {name!r} has {rows} rows for {count} entity keys")


def _not_there(key: str, *, down: bool) -> MlctlError:
    if down:
        return MlctlError(
            ErrorCode.UNAVAILABLE,
            "precomputed answers cannot be read now",
            "Retry shortly, or send the inputs as well.",
        )
    return MlctlError(ErrorCode.KEY_NOT_FOUND, f"nothing is precomputed for {shown(key)}")
