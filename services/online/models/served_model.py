"""The life of one served model: verified, proved, warm, ready; then drained and stopped.

Nothing is answered before `start` has returned and nothing after `stop` was called.
HTTP, gRPC and BentoML's own API all call the model through `infer`. Several models of one
process are held together by `mlctl.services.online.models.repository`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NoReturn

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry

from mlctl.bundle.tensors import Signature
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.access import Access
from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.model.input_checks import add_absent
from mlctl.services.model.padding import MAX_MEASURED_ROWS, LengthPadding
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.warmup import best_rows, check_golden, check_padding, warm_up
from mlctl.services.online.batching.admission import Inflight, too_many_bytes
from mlctl.services.online.batching.executor import Answer, BatchExecutor, Cancellable, Waiter
from mlctl.services.online.batching.model_executor import ModelExecutor, forward
from mlctl.services.online.batching.scheduler import LARGE_ROWS, Limits, Priority, QueueFullError
from mlctl.services.online.batching.stepwise import StepwiseExecutor
from mlctl.services.online.batching.streaming import AnswerStream
from mlctl.services.online.metrics.counts import Metrics
from mlctl.services.online.metrics.tally import Tally
from mlctl.services.online.models.precomputed import PrecomputedLookup, open_precomputed
from mlctl.services.online.observability.calls import outcome_of
from mlctl.services.online.observability.observer import Observer, open_observer
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.wire import InferRequest, shown

# A batch that takes less is run on the event loop: the hop to a thread would cost more.
_INLINE_SECONDS = 0.00025
_MAX_QUEUE_ROWS = 4096
_MAX_BODY_BYTES = 64 << 20
# A batch that has run for so many times what the slowest is expected to take is hung.
_HANG_FACTOR = 20
# How long a stop waits for a batch whose callers have all had an answer.
_STOP_GRACE_SECONDS = 5.0
# The collector's thresholds: young objects, and collections between those of older generations.
_COLLECTED = (10_000, 20, 50)
logger = logging.getLogger("mlctl.model")


class ModelPhase(Enum):
    """The phases of a served model."""

    NEW = "starting"
    READY = "ready"
    STOPPING = "stopping"


class ServedModel:
    """One model of one bundle in one process.

    `answered` counts an answered request: its protocol, the seconds of its stages parse, queue,
    infer and serialize, and its client. `counted` counts a request by its protocol, outcome and
    client.
    """

    answered: Callable[[str, float, float, float, float, str], None]
    counted: Callable[[str, str, str], None]

    def __init__(
        self,
        bundle: VerifiedBundle,
        settings: ServerSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        inflight: Inflight | None = None,
        access: Access | None = None,
    ) -> None:
        """`inflight` and `access` are what several models share."""
        self.name = bundle.manifest.name
        self.digest = bundle.digest
        self.signature = bundle.manifest.signature
        self.generates = bundle.manifest.generation is not None
        self.missing = bundle.manifest.missing
        self._optional = tuple(
            spec for spec in self.signature.inputs if spec.name in self.missing.optional
        )
        self.settings = settings
        self._row_values = _values_of_row(bundle.manifest.signature)
        batching = bundle.manifest.batching
        self.max_length = settings.max_length or batching.max_length
        self.max_body_bytes = settings.max_body_bytes or batching.max_body_bytes or _MAX_BODY_BYTES
        self._deadline = settings.deadline_ms / 1000
        self.phase = ModelPhase.NEW
        self.access = access or settings.access()
        self.draining = False
        self.turned = asyncio.Event()
        self._bundle = bundle
        self._clock = clock or SystemClock()
        self._registry = registry
        self._batching: ModelExecutor | None = None
        self._costs = BatchCosts()
        self._lengths: LengthPadding | None = None
        self._hung = False
        self.inflight = inflight or Inflight(settings.max_inflight_bytes)
        self._metrics: Metrics | None = None
        self.observer: Observer | None = None
        self._precomputed: PrecomputedLookup | None = None

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The models that are served: this one alone."""
        return (self,)

    def find(self, name: str, version: str = "") -> ServedModel:
        """This model; MODEL_NOT_FOUND if another name is meant, or a `version` not its digest."""
        if name != self.name:
            _not_found(f"no model {shown(name)} here; this server has {self.name!r}")
        if version not in ("", self.digest):
            _not_found(
                f"no version {shown(version)} of model {name!r} here; this server has {self.digest}"
            )
        return self

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here: they are answered while draining, too."""
        return self.phase is ModelPhase.READY and not self.draining and not self._hung

    @property
    def state(self) -> str:
        """The phase in a word, or that the model drains or hangs."""
        if self._hung:
            return "hung"
        return "draining" if self.draining and self.phase is ModelPhase.READY else self.phase.value

    def drain(self) -> None:
        """Report "not ready", and go on answering requests.

        The event `turned` is set and replaced, so that each event is set once.
        """
        self.draining = True
        turned, self.turned = self.turned, asyncio.Event()
        turned.set()

    @property
    def limits(self) -> Limits | None:
        """The batching limits in force; None before the start."""
        return None if self._batching is None else self._batching.limits

    @property
    def tally(self) -> Tally | None:
        """What this worker counted; None before the start."""
        return None if self._metrics is None else self._metrics.tally()

    @property
    def waiting_rows(self) -> int:
        """The rows that wait for the model."""
        return 0 if self._batching is None else self._batching.waiting_rows

    @property
    def live(self) -> bool:
        """False once the model's run hangs: only a restart of the process helps then.

        May be called on any thread: a model that hangs on the event loop itself lets nothing
        else ask.
        """
        if self._batching is not None and not self._hung:
            seconds = self._batching.running_seconds
            self._hung = seconds > self.settings.hang_s and seconds > self._longest()
            if self._hung:
                logger.critical("model %s hangs: a batch runs for %.0f s", self.name, seconds)
                if self._metrics is not None:
                    self._metrics.hung()
        return not self._hung

    async def start(self) -> None:
        """Load, check the golden rows, warm up; raises the reason why the model must not serve."""
        scorer, seconds = await asyncio.to_thread(self._prepare)
        self._metrics = Metrics(
            self.name,
            self._registry,
            lambda: scorer.transform_seconds,
            scorer.lookups,
            by_client=self.access.required,
        )
        self.answered = self._metrics.answered
        self.counted = self._metrics.request
        self._observe()
        quick = {rows: time for rows, time in seconds.items() if time <= _INLINE_SECONDS}
        theirs = self._bundle.manifest.batching.max_rows
        slow = [rows for rows in seconds if rows not in quick and rows <= theirs]
        # A transform that yields is closed on the thread, while a batch might run here.
        # A lookup of features waits for the network, which would stop the event loop.
        inline = not (slow or scorer.yields or scorer.lookups) and self.signature.bounded
        scorer.max_rows = self._batch_rows(scorer, quick if inline else seconds)
        scorer.max_length = self.max_length
        self._costs = BatchCosts(seconds)
        limits = self._limits(scorer, inline=inline)
        if scorer.yields:
            self._batching = StepwiseExecutor(scorer, limits, self._clock, self._metrics)
        else:
            self._batching = BatchExecutor(
                scorer,
                limits,
                self._clock,
                self._metrics,
                inline=inline,
                costs=self._costs,
                lengths=self._lengths,
                lookups=scorer.lookups,
            )
        self._precomputed = open_precomputed(
            self, self.settings, self._batching, self._clock, self._registry
        )
        # What was loaded so far lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        # Requests make no reference cycles; a search among waiting ones took 6 % of the loop.
        gc.set_threshold(*_COLLECTED)
        self.phase = ModelPhase.READY
        rows = scorer.max_rows
        logger.info(
            "model %s (%s) is ready: batches of up to %d rows, which take %.3g ms, inline=%s",
            *(self.name, self.digest[:12], rows, self._costs.seconds(rows) * 1e3, inline),
        )

    def infer(
        self,
        inputs: dict[str, np.ndarray],
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Answer]:
        """Queue a request; cancel the future to withdraw it. `timeout` only shortens the deadline.

        Raises UNAVAILABLE unless ready, and what `ModelExecutor.submit` raises.
        """
        if self._optional:
            add_absent(inputs, self._optional)
        return self._serving().submit(inputs, self._seconds(timeout), priority)

    def quick_reject(self, priority: Priority, size: int) -> QueueFullError | None:
        """Return the error that a request whose body has `size` bytes certainly gets, else None.

        A value takes at least a byte, so the size bounds the rows: a large request could be
        accepted.
        """
        batching = self._batching
        if batching is None or self._precomputed is not None:
            return None
        if self.phase is not ModelPhase.READY or self._hung:
            return None
        if size > self._row_values * LARGE_ROWS:
            return None
        return batching.quick_reject(priority)

    def check_size(self, size: int) -> None:
        """Raise PAYLOAD_TOO_LARGE for a body of `size` bytes above the model's limit."""
        if size > self.max_body_bytes:
            raise too_many_bytes(self.max_body_bytes)

    def handle(
        self, request: InferRequest, waiter: Waiter, timeout: float | None, priority: Priority
    ) -> Cancellable:
        """Answer a request to `waiter`: from the precomputed answers to its keys, or by the model.

        `timeout` (seconds) can only shorten the deadline. Returns what withdraws the request.
        Raises UNAVAILABLE unless ready, and what `ModelExecutor.enqueue` raises.
        """
        if self._optional:
            add_absent(request.inputs, self._optional)
        if self._precomputed is None or not request.keys or self.phase is not ModelPhase.READY:
            limit = self._deadline
            seconds = limit if timeout is None or timeout > limit else timeout
            if self.phase is not ModelPhase.READY or self._hung or self._batching is None:
                raise self._unavailable()
            return self._batching.enqueue(request.inputs, waiter, seconds, priority)
        return forward(self.ask(request, timeout, priority), waiter)

    def ask(
        self, request: InferRequest, timeout: float | None, priority: Priority
    ) -> asyncio.Future[Answer]:
        """Answer a request as `handle` does, to a future."""
        if self._precomputed is None or not request.keys or self.phase is not ModelPhase.READY:
            return self.infer(request.inputs, timeout, priority)
        return self._precomputed.ask(request, self._seconds(timeout), priority)

    def stream(
        self,
        inputs: dict[str, np.ndarray],
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> AnswerStream:
        """Start a streamed answer. Each piece must come within the deadline; close it to cancel.

        A model that makes its answer as a whole has one piece. Raises what `infer` does.
        """
        if self._optional:
            add_absent(inputs, self._optional)
        return self._serving().stream(inputs, self._seconds(timeout), priority)

    def _serving(self) -> ModelExecutor:
        if self.phase is not ModelPhase.READY or self._hung or self._batching is None:
            raise self._unavailable()
        return self._batching

    def _unavailable(self) -> MlctlError:
        return MlctlError(ErrorCode.UNAVAILABLE, f"model {self.name!r} is {self.state}")

    def _seconds(self, timeout: float | None) -> float:
        limit = self._deadline
        return limit if timeout is None else min(limit, timeout)

    def count(self, protocol: str, error: BaseException | None, client: str = "") -> None:
        """Record the outcome of a request of `client`.

        None is success, a cancellation is a client that disconnected.
        """
        if self._metrics is None:
            return
        self._metrics.request(protocol, outcome_of(error), client)

    def publish(self) -> None:
        """Make everything that was counted so far readable on /metrics."""
        if self._metrics is not None:
            self._metrics.publish()

    def _observe(self) -> None:
        self.observer = open_observer(
            self.settings, self.name, self.digest, self.signature, self._clock
        )
        if self.observer is not None:
            self.observer.expose(self.name, self._registry)

    async def stop(self, grace: float = _STOP_GRACE_SECONDS) -> None:
        """Stop accepting, answer accepted requests within their deadlines, end the thread.

        A run that outlasts its requests gets `grace` seconds: it may never end.
        """
        self.phase = ModelPhase.STOPPING
        if self._precomputed is not None:
            await self._precomputed.drain()
        if self._batching is not None:
            if not await self._batching.drain(grace):
                logger.critical("model %s is stopped while a batch still runs", self.name)
            self._batching.close()
        if self.observer is not None:
            await asyncio.to_thread(self.observer.close)

    def abandon(self) -> None:
        """Fail what is open with UNAVAILABLE: its batch will not end."""
        if self._batching is not None:
            self._batching.close()

    def _longest(self) -> float:
        """Return for how many seconds the running batch may run, by the measured costs."""
        if self._batching is None:
            return 0.0
        # One request may have more rows than a batch, and runs in as many parts as it takes.
        rows = max(self._batching.limits.max_rows, self._batching.running_rows)
        return _HANG_FACTOR * self._costs.seconds(rows)

    def _prepare(self) -> tuple[Scorer, dict[int, float]]:
        began = self._clock.monotonic()
        scorer = Scorer.open(self._bundle, self.settings)
        loaded = self._clock.monotonic()
        golden = check_golden(scorer, self._bundle)
        pad = self._bundle.manifest.batching.pad
        if pad and scorer.joinable and not scorer.yields:
            self._lengths = LengthPadding(self.signature, pad)
            check_padding(scorer, self._lengths, golden)
        max_rows = min(MAX_MEASURED_ROWS, self.settings.max_rows or MAX_MEASURED_ROWS)
        # On a busy machine large batches lose the processor more often than small ones do, so time
        # on it is the better measure where one thread does all of the work.
        one_thread = scorer.thread_safe and self.settings.threads == 1
        clock = time.thread_time if one_thread else self._clock.monotonic
        measured = warm_up(scorer, golden, clock, max_rows)
        # `mlctl bench --cold` reads this line.
        logger.info(
            "model %s: loaded in %.3f s, proved and warmed up in %.3f s",
            self.name,
            loaded - began,
            self._clock.monotonic() - loaded,
        )
        return scorer, measured

    def _batch_rows(self, scorer: Scorer, seconds: Mapping[int, float]) -> int:
        """Return the rows of a full batch: where the model does most per second.

        The bundle's `max_rows` where rows differ in size, because the time of some says nothing
        about others. At most the setting `max_rows`.
        """
        choose = scorer.joinable and self.signature.bounded
        rows = best_rows(seconds) if choose else scorer.max_rows
        return min(rows, self.settings.max_rows or rows)

    def _limits(self, scorer: Scorer, *, inline: bool) -> Limits:
        """The environment's settings, else the bundle's, else the defaults."""
        ours, theirs = self.settings, self._bundle.manifest.batching
        max_queue_ms = _first(ours.max_queue_ms, theirs.max_queue_ms)
        max_wait_ms = _first(ours.max_wait_ms, theirs.max_wait_ms)
        # A batch on the event loop takes less time than a wait could save.
        longest_wait = 0.0 if inline else math.inf
        return Limits(
            max_rows=scorer.max_rows,
            max_queue_rows=ours.max_queue_rows or theirs.max_queue_rows or _MAX_QUEUE_ROWS,
            max_wait=longest_wait if max_wait_ms is None else max_wait_ms / 1000,
            joinable=scorer.joinable,
            max_queue=None if max_queue_ms is None else max_queue_ms / 1000,
        )


def _values_of_row(signature: Signature) -> int:
    """Return how many values a row has at least, over all inputs; 0 if that is not known."""
    if not signature.batched or not signature.bounded:
        return 0
    return sum(math.prod(spec.shape[1:]) for spec in signature.inputs)


def _first(ours: float | None, theirs: float | None) -> float | None:
    return theirs if ours is None else ours


def _not_found(message: str) -> NoReturn:
    raise MlctlError(
        ErrorCode.MODEL_NOT_FOUND, message, "GET /v2/models/NAME lists the versions of a model."
    )
