"""The life of one served model: verified, proved, warm, ready; then drained and stopped.

Nothing is answered before `start` has returned and nothing after `stop` was called.
HTTP, gRPC and BentoML's own API all ask the model through `infer`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from enum import Enum
from typing import NoReturn

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batcher import Limits, Priority
from services.batching import Answer, Batching
from services.costs import BatchCosts
from services.metrics import GONE, OK, Metrics
from services.padding import LengthPadding
from services.scorer import Scorer
from services.settings import Settings
from services.warmup import check_golden, check_padding, warm_up
from services.wire import shown

# A batch that takes less is run on the event loop: the hop to a thread would cost more.
_INLINE_SECONDS = 0.0005
_INLINE_HEADROOM = 2.0
_MAX_QUEUE_ROWS = 4096
# A batch that has run for so many times what the slowest is expected to take is hung.
_HANG_FACTOR = 20
# How long a stop waits for a batch whose callers have all had an answer.
_STOP_GRACE_SECONDS = 5.0
logger = logging.getLogger("mlctl.host")


class Phase(Enum):
    """Where a host is in its life."""

    NEW = "starting"
    READY = "ready"
    STOPPING = "stopping"


class ModelHost:
    """One model of one bundle in one process."""

    def __init__(
        self,
        bundle: VerifiedBundle,
        settings: Settings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.name = bundle.manifest.name
        self.digest = bundle.digest
        self.signature = bundle.manifest.signature
        self.settings = settings
        self.phase = Phase.NEW
        self._bundle = bundle
        self._clock = clock or SystemClock()
        self._registry = registry
        self._batching: Batching | None = None
        self._costs = BatchCosts()
        self._lengths: LengthPadding | None = None
        self._hung = False
        self._metrics: Metrics | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.phase is Phase.READY

    @property
    def live(self) -> bool:
        """False once the model's run hangs: only a restart of the process helps then.

        A model that runs on the event loop itself and hangs answers no such question.
        """
        if self._batching is not None and not self._hung:
            # One request may have more rows than a batch, and runs in as many parts as it takes.
            rows = max(self._bundle.manifest.batching.max_rows, self._batching.running_rows)
            longest = self._costs.seconds(rows)
            seconds = self._batching.running_seconds
            self._hung = seconds > max(self.settings.hang_s, _HANG_FACTOR * longest)
            if self._hung:
                logger.critical("model %s hangs: a batch runs for %.0f s", self.name, seconds)
        return not self._hung

    async def start(self) -> None:
        """Load, check the golden rows, warm up; raises the reason why the model must not serve."""
        scorer, measured = await asyncio.to_thread(self._prepare)
        self._metrics = Metrics(self.name, self._registry)
        quick = max(measured.values()) * _INLINE_HEADROOM < _INLINE_SECONDS
        inline = quick and self.signature.bounded
        self._costs = BatchCosts(measured)
        self._batching = Batching(
            scorer,
            self._limits(scorer),
            self._clock,
            self._metrics,
            inline=inline,
            costs=self._costs,
            lengths=self._lengths,
        )
        # What was loaded so far lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        self.phase = Phase.READY
        logger.info("model %s (%s) is ready, inline=%s", self.name, self.digest[:12], inline)

    def infer(
        self,
        inputs: dict[str, np.ndarray],
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Answer]:
        """Ask the model; cancel the future to leave. `timeout` can only shorten the deadline.

        Raises UNAVAILABLE unless ready, and what `Batching.submit` raises.
        """
        if not self.ready or self._batching is None:
            raise MlctlError(ErrorCode.UNAVAILABLE, f"model {self.name!r} is {self.phase.value}")
        limit = self.settings.deadline_ms / 1000
        seconds = limit if timeout is None else min(limit, timeout)
        return self._batching.submit(inputs, seconds, priority)

    def count(self, protocol: str, error: BaseException | None) -> None:
        """Record a request's outcome: None is success, a cancellation is a caller who left."""
        if self._metrics is None:
            return
        if error is None:
            outcome = OK
        elif isinstance(error, asyncio.CancelledError):
            outcome = GONE
        else:
            outcome = (error.code if isinstance(error, MlctlError) else ErrorCode.INTERNAL).value
        self._metrics.request(protocol, outcome)

    def stages(self, parse: float, queue: float, infer: float, serialize: float) -> None:
        """Record the seconds that one answered request spent in each stage."""
        if self._metrics is not None:
            self._metrics.stages(parse, queue, infer, serialize)

    def publish(self) -> None:
        """Make everything that was counted so far readable on /metrics."""
        if self._metrics is not None:
            self._metrics.publish()

    async def stop(self, grace: float = _STOP_GRACE_SECONDS) -> None:
        """Accept no more, answer what was accepted (each within its deadline), end the thread.

        A run that outlasts its callers is given `grace` seconds: it may never end.
        """
        self.phase = Phase.STOPPING
        if self._batching is not None:
            if not await self._batching.drain(grace):
                logger.critical("model %s is stopped while a batch still runs", self.name)
            self._batching.close()

    def _prepare(self) -> tuple[Scorer, dict[int, float]]:
        scorer = Scorer.open(self._bundle, self.settings)
        golden = check_golden(scorer, self._bundle)
        pad = self._bundle.manifest.batching.pad
        if pad and scorer.joinable:
            self._lengths = LengthPadding(self.signature, pad)
            check_padding(scorer, self._lengths, golden)
        return scorer, warm_up(scorer, golden, self._clock)

    def _limits(self, scorer: Scorer) -> Limits:
        """The environment's settings, else the bundle's, else the defaults."""
        ours, theirs = self.settings, self._bundle.manifest.batching
        max_queue_ms = _first(ours.max_queue_ms, theirs.max_queue_ms)
        return Limits(
            max_rows=scorer.max_rows,
            max_queue_rows=ours.max_queue_rows or theirs.max_queue_rows or _MAX_QUEUE_ROWS,
            max_wait=(_first(ours.max_wait_ms, theirs.max_wait_ms) or 0.0) / 1000,
            joinable=scorer.joinable,
            max_queue=None if max_queue_ms is None else max_queue_ms / 1000,
            patience=ours.overload_patience_ms / 1000,
        )


def _first(ours: float | None, theirs: float | None) -> float | None:
    return theirs if ours is None else ours


def require_model(host: ModelHost, name: str, version: str = "") -> None:
    """MODEL_NOT_FOUND unless `host` serves `name`, in `version` (its digest) if one is given."""
    if name != host.name:
        _not_found(f"no model {shown(name)} here; this server has {host.name!r}")
    if version not in ("", host.digest):
        _not_found(
            f"no version {shown(version)} of model {name!r} here; this server has {host.digest}"
        )


def _not_found(message: str) -> NoReturn:
    raise MlctlError(
        ErrorCode.MODEL_NOT_FOUND, message, "GET /v2/models/NAME tells the versions of a model."
    )
