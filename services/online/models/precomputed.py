"""Answers to requests with entity keys, from the store and, for missing rows, from the model.

Only rows without a fresh stored answer go to the model; the response keeps the order of the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import ModelIdentity
from mlctl.services.online.batching.streaming import Answer
from mlctl.services.online.models.precomputed_metrics import (
    DOWN,
    FOREIGN,
    HIT,
    MISS,
    STALE,
    PrecomputedMetrics,
)
from mlctl.services.precomputed.base import PrecomputedRow
from mlctl.services.precomputed.lookup import FoundRows, Lookup
from mlctl.services.precomputed.row_codec import RowCodec
from mlctl.services.precomputed.store_urls import open_store
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import InferRequest, invalid, shown

if TYPE_CHECKING:
    from mlctl.services.online.batching.model_executor import ModelExecutor
    from mlctl.services.online.settings import ServerSettings

Submit = Callable[[Arrays, float, Priority], asyncio.Future[Answer]]


class PrecomputedLookup:
    """Answers requests with entity keys to one model in one worker; `ttl` is in seconds."""

    def __init__(
        self,
        codec: RowCodec,
        finder: Lookup,
        submit: Submit,
        meter: PrecomputedMetrics,
        clock: Clock,
        *,
        ttl: float | None = None,
    ) -> None:
        self._codec = codec
        self._finder = finder
        self._submit = submit
        self._meter = meter
        self._clock = clock
        self._ttl = ttl
        self._tasks: set[asyncio.Task[Answer]] = set()

    def ask(
        self, request: InferRequest, timeout: float, priority: Priority
    ) -> asyncio.Future[Answer]:
        """Return a future of the answer, which may be cancelled; it fails after `timeout` seconds.

        INVALID_INPUT at once if the keys do not fit the inputs. The future fails with
        NO_PRECOMPUTED_ANSWER if a key is not stored and the request has no inputs.
        """
        _check_rows(request)
        if not self._finder.quick:
            return self._open(self._look_up(request, timeout, priority))
        start = perf_counter()
        found, seconds = self._fresh(self._finder.find(request.keys), start)
        if None in found.rows:
            return self._open(self._fill(request, found, timeout, priority))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        future.set_result(self._whole(found.rows, seconds))
        return future

    async def drain(self) -> None:
        """Wait for the requests in progress, then close the store."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._finder.close)

    def _open(self, answer: Coroutine[Any, Any, Answer]) -> asyncio.Future[Answer]:
        task = asyncio.get_running_loop().create_task(answer)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look_up(self, request: InferRequest, limit: float, priority: Priority) -> Answer:
        start = perf_counter()
        rows = await self._finder.find_on_thread(request.keys)
        found, seconds = self._fresh(rows, start)
        if None in found.rows:
            return await self._fill(request, found, limit - seconds, priority)
        return self._whole(found.rows, seconds)

    def _fresh(self, found: FoundRows, start: float) -> tuple[FoundRows, float]:
        """Remove rows that are too old or not of this model, and count all by result.

        Also returns how long the lookup took that began at `start`.
        """
        seconds = perf_counter() - start
        self._meter.looked_up(seconds)
        rows, stale = found.rows, 0
        foreign = [i for i, row in enumerate(rows) if row and not self._codec.fits(row.payload)]
        for index in foreign:
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
        self._meter.count(FOREIGN, len(foreign))
        self._meter.count(DOWN if found.down else MISS, absent - stale - len(foreign))
        return found, seconds

    def _whole(self, rows: Sequence[PrecomputedRow | None], seconds: float) -> Answer:
        """Return the answer of rows that are all stored."""
        stored = [row for row in rows if row is not None]
        age = max(0.0, self._clock.wall() - min(row.at for row in stored))
        outputs = self._codec.decode([row.payload for row in stored])
        parameters: dict[str, str | float] = {"source": "precomputed", "age_s": round(age, 3)}
        return Answer(outputs, 0.0, seconds, 0, parameters, rows=len(rows))

    async def _fill(
        self, request: InferRequest, found: FoundRows, limit: float, priority: Priority
    ) -> Answer:
        """Run the model on the rows that the store lacks, and return the whole answer."""
        missing = [index for index, row in enumerate(found.rows) if row is None]
        if not request.inputs:
            raise _not_found(request.keys[missing[0]], down=found.down)
        inputs = request.inputs
        if len(missing) < len(found.rows):
            inputs = {name: array[missing] for name, array in inputs.items()}
        ran = await self._submit(inputs, limit, priority)
        stored = [row for row in found.rows if row is not None]
        made = iter(self._codec.encode(ran.outputs))
        payloads = [next(made) if row is None else row.payload for row in found.rows]
        parameters: dict[str, str | float] = {"source": "online", "age_s": 0.0}
        if stored:
            age = self._clock.wall() - min(row.at for row in stored)
            parameters = {
                "source": "mixed",
                "age_s": round(age, 3),
                "precomputed_rows": len(stored),
            }
        outputs = self._codec.decode(payloads)
        return ran._replace(outputs=outputs, parameters=parameters, rows=len(payloads))


def open_precomputed(
    model: ModelIdentity,
    settings: ServerSettings,
    batching: ModelExecutor,
    clock: Clock,
    registry: CollectorRegistry,
) -> PrecomputedLookup | None:
    """Return what answers the model's requests with keys; None if MLCTL_PRECOMPUTED is not set.

    UNSUPPORTED_MODEL for a model whose answers cannot be precomputed.
    """
    if settings.precomputed is None:
        return None
    if not batching.limits.joinable:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"model {model.name!r} has no independent rows, so its answers cannot be precomputed",
            "Serve it without MLCTL_PRECOMPUTED.",
        )
    codec = RowCodec(model.signature.outputs)
    store = open_store(settings.precomputed, settings.precomputed_store)
    timeout = settings.precomputed_timeout_ms / 1000
    meter = PrecomputedMetrics(model.name, registry)
    finder = Lookup(store.reader(model.digest, timeout), timeout, clock)
    return PrecomputedLookup(
        codec, finder, batching.submit, meter, clock, ttl=settings.precomputed_ttl_s
    )


def _check_rows(request: InferRequest) -> None:
    """INVALID_INPUT unless each row has a key."""
    count = len(request.keys)
    for name, array in request.inputs.items():
        if not array.ndim or array.shape[0] != count:
            rows = array.shape[0] if array.ndim else 0
            raise invalid(f"tensor {name!r} has {rows} rows for {count} entity keys")


def _not_found(key: str, *, down: bool) -> MlctlError:
    if down:
        return MlctlError(
            ErrorCode.UNAVAILABLE,
            "precomputed answers are unavailable",
            "Retry shortly, or send the inputs as well.",
        )
    return MlctlError(ErrorCode.NO_PRECOMPUTED_ANSWER, f"nothing is precomputed for {shown(key)}")
