"""Run the engine of a language model on the model's thread, one step after the other.

The thread does not wait for the event loop between steps: it notifies the loop once per step, and
takes the requests that joined or left since. The slot of a client that disconnects is free for the
next step. A request must have its first token by its deadline; after that its answer takes as long
as its tokens take, because `max_tokens` bounds it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as Items
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from threading import Semaphore
from typing import NamedTuple

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.engine import (
    ContinuousBatch,
    GenerationRequest,
    Sequence,
    StepResult,
    TokenPiece,
)
from mlctl.services.generate.options import PROMPT, TEXT
from mlctl.services.generate.sampling import GREEDY
from mlctl.services.generate.text import read_prompts
from mlctl.services.online.batching.admission import Limits, QueueFullError, deadline_exceeded
from mlctl.services.online.batching.model_executor import (
    BatchMeter,
    ModelExecutor,
    forward,
    log_failure,
    stopping,
)
from mlctl.services.online.batching.preparation import RequestPreparation
from mlctl.services.online.batching.split import Cancellable, Waiter
from mlctl.services.online.batching.streaming import Answer, AnswerStream, PieceStream
from mlctl.services.online.metrics.counts import BatchStats
from mlctl.services.online.metrics.generation import GenerationMetrics
from mlctl.services.protocol.priority import Priority

# Answers of the V2 protocol's infer calls, which carry no options: greedy, and at most this long.
INFER_TOKENS = 256
_RETRY_SECONDS = 1.0
# Steps that the event loop may be behind: it delivers one step while the next one runs, and a model
# with short steps leaves it time to notice disconnects.
_STEPS_AHEAD = 2


class Timing(NamedTuple):
    """The seconds from a request to its slot in the KV cache and to its first token."""

    queue: float
    first_token: float


class TokenStream(PieceStream[TokenPiece]):
    """The pieces of one answer; when it is closed, its slot is free for the next step."""

    def __init__(
        self, executor: GenerationExecutor, sequence: Sequence, now: float, deadline: float
    ) -> None:
        """`deadline` is the time by which the first token must come."""
        super().__init__(lambda: None, partial(executor.leave, sequence))
        self.sequence = sequence
        self.arrived = now
        self.deadline = deadline
        self.started: float | None = None
        self.first: float | None = None
        self.last = now

    @property
    def timing(self) -> Timing:
        """The times of an answer that has begun."""
        assert self.started is not None
        assert self.first is not None
        return Timing(self.started - self.arrived, self.first - self.arrived)


class GenerationExecutor(ModelExecutor):
    """The open requests of one language model."""

    def __init__(
        self,
        batch: ContinuousBatch,
        limits: Limits,
        clock: Clock,
        meter: BatchMeter,
        metrics: GenerationMetrics,
        *,
        drain_seconds: float,
    ) -> None:
        """`limits.max_rows` requests run at once. A stop waits `drain_seconds` for open answers."""
        super().__init__(clock, meter)
        self.codec = batch.codec
        self.preparation = RequestPreparation(batch.codec)
        self.max_tokens = batch.max_tokens
        self._batch = batch
        self._limits = limits
        self._metrics = metrics
        self._drain_seconds = drain_seconds
        self._streams: dict[Sequence, TokenStream] = {}
        # `batch.add` or `batch.remove` of sequences, which the model's thread does between steps.
        self._changes: deque[tuple[Callable[[Sequence], None], Sequence]] = deque()
        self._cached_tokens = 0
        self._undelivered = Semaphore(_STEPS_AHEAD)
        self._running = False
        self._started: float | None = None  # when the running step began; set by the thread
        self._closed = False

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def waiting_rows(self) -> int:
        return max(0, len(self._streams) - self._limits.max_rows)

    @property
    def running_rows(self) -> int:
        return min(len(self._streams), self._limits.max_rows)

    @property
    def running_seconds(self) -> float:
        started = self._started  # read once: the watchdog calls this on another thread
        return 0.0 if started is None else self._clock.monotonic() - started

    @property
    def has_open(self) -> bool:
        return bool(self._streams)

    @property
    def busy(self) -> bool:
        return self._running

    def open(self, request: GenerationRequest, timeout: float, client: str = "") -> TokenStream:
        """Queue a request of `client`, whose first token must come within `timeout` seconds.

        In a full queue it takes the place of the last request of a client that has more waiting.
        Raises INVALID_INPUT, PAYLOAD_TOO_LARGE, QUEUE_FULL, UNAVAILABLE.
        """
        if self._closed:
            raise stopping()
        self._batch.check(request)
        if self.waiting_rows >= self._limits.max_queue_rows:
            self._make_room(client)
        now = self._clock.monotonic()
        sequence = Sequence(request, self.codec, client)
        stream = self._streams[sequence] = TokenStream(self, sequence, now, now + timeout)
        self._changes.append((self._batch.add, sequence))
        self._schedule()
        return stream

    def _make_room(self, client: str) -> None:
        """Reject the newest request of the client that has most waiting, for one of `client`.

        Raises QUEUE_FULL if `client` has as many.
        """
        full = QueueFullError(self.waiting_rows, self._limits.max_queue_rows, _RETRY_SECONDS)
        waiting = [each for each in self._streams.values() if each.started is None]
        counts = Counter(each.sequence.client for each in waiting)
        most = max(counts, key=counts.__getitem__, default=client)
        if counts[most] <= counts[client] + 1:
            raise full
        newest = next(each for each in reversed(waiting) if each.sequence.client == most)
        newest.end(full)
        self._drop(newest.sequence)

    def leave(self, sequence: Sequence) -> None:
        """Withdraw a request."""
        self._drop(sequence)
        self._schedule()

    def enqueue(
        self,
        inputs: Arrays,
        waiter: Waiter,
        timeout: float,
        priority: Priority = Priority.NORMAL,
    ) -> Cancellable:
        """See `ModelExecutor.enqueue`: each prompt's whole answer, within `timeout` seconds."""
        del priority
        prompts = self._prompts(inputs)
        return forward(self._loop.create_task(self._collect(prompts, timeout)), waiter)

    def stream(
        self, inputs: Arrays, timeout: float, priority: Priority = Priority.NORMAL
    ) -> AnswerStream:
        """See `ModelExecutor.stream`: the text of one prompt's answer as it comes."""
        del priority
        prompts = self._prompts(inputs, count=1)

        def cancel() -> None:
            task.cancel()

        pieces = AnswerStream(lambda: None, cancel)
        task = self._loop.create_task(self._copy(prompts, timeout, pieces))
        return pieces

    async def drain(self, grace: float | None = None) -> bool:
        """See `ModelExecutor.drain`; answers that take longer than the limit are left open."""
        try:
            async with asyncio.timeout(self._drain_seconds):
                return await super().drain(grace)
        except TimeoutError:
            return False

    def close(self) -> None:
        self._closed = True
        for sequence, stream in list(self._streams.items()):
            stream.end(stopping())
            self._drop(sequence)
        self.preparation.close()
        self._stop()

    def _prompts(self, inputs: Arrays, count: int | None = None) -> list[str]:
        """Return the prompts of `inputs`, which must be `count` where that is given."""
        prompts = inputs.get(PROMPT)
        if prompts is None or len(inputs) != 1 or prompts.ndim != 1 or prompts.dtype != object:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"send one input {PROMPT!r}: BYTES of the shape [prompts]"
            )
        if count not in (None, len(prompts)):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the request has {len(prompts)} prompts, a streamed answer is for {count}",
            )
        texts = read_prompts(prompts)
        for text in texts:
            self.codec.check_size([text], self.max_tokens)
        return texts

    @asynccontextmanager
    async def _open_all(
        self, prompts: Items[str], seconds: float
    ) -> AsyncGenerator[list[TokenStream]]:
        """Open a request for each of `prompts`, all or none; they are closed with the context."""
        with ExitStack() as opened:
            work = partial(self.codec.encode_all, prompts)
            streams = []
            for tokens in await self.preparation.run(sum(map(len, prompts)), work):
                size = max(1, min(INFER_TOKENS, self.max_tokens - len(tokens)))
                stream = self.open(GenerationRequest(tokens, size, GREEDY), seconds)
                opened.callback(stream.close)
                streams.append(stream)
            yield streams

    async def _collect(self, prompts: Items[str], seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds), self._open_all(prompts, seconds) as streams:
                texts = ["".join([piece.text async for piece in stream]) for stream in streams]
        except TimeoutError:
            raise deadline_exceeded() from None
        queue = max((stream.timing.queue for stream in streams), default=0.0)
        first = min((stream.arrived for stream in streams), default=0.0)
        last = max((stream.last for stream in streams), default=0.0)
        outputs = {TEXT: np.array([text.encode() for text in texts], dtype=object)}
        rows = len(texts)
        return Answer(outputs, queue, max(0.0, last - first - queue), rows, rows=rows)

    async def _copy(self, prompts: Items[str], seconds: float, target: AnswerStream) -> None:
        try:
            async with self._open_all(prompts, seconds) as (source,):
                async for piece in source:
                    answer = {TEXT: np.array([piece.text.encode()], dtype=object)}
                    target.put(Answer(answer, source.timing.queue, source.last - source.arrived, 1))
        except MlctlError as error:
            target.end(error)
        target.end()

    def _pump(self) -> None:
        self._pumping = False
        now = self._clock.monotonic()
        unanswered = [stream for stream in self._streams.values() if stream.first is None]
        for stream in unanswered:
            if now >= stream.deadline:
                stream.end(deadline_exceeded())
                self._drop(stream.sequence)
        if self._changes and not self._running and not self._closed:
            self._running = True
            self._thread.submit(self._run_steps, self._stopped)
        waiting, running = self.waiting_rows, self.running_rows
        self._meter.queue_rows(waiting)
        self._metrics.state(running, waiting, self._cached_tokens)
        self._changed.set()
        deadlines = (stream.deadline for stream in unanswered if not stream.ended)
        self._arm(min(deadlines, default=None), now)

    def _run_steps(self) -> None:
        """Run steps until no request is left. On the model's thread."""
        while not self._closed:
            began = self._clock.monotonic()
            while self._changes:
                change, sequence = self._changes.popleft()
                change(sequence)
            if not self._batch.busy:
                return
            self._started = began
            result = self._batch.step()
            self._undelivered.acquire()
            self._loop.call_soon_threadsafe(self._stepped, result, began)

    def _stopped(self, result: BaseException | None) -> None:
        """Continue with the requests that came since the last step; `result` is what it raised."""
        self._running, self._started, self._cached_tokens = False, None, 0
        if result is not None:
            failure = MlctlError(ErrorCode.INTERNAL, "the request could not be run")
            failure.__cause__ = result
            log_failure(failure)
            for sequence, stream in list(self._streams.items()):
                stream.end(failure)
                self._drop(sequence)
        self._pump()

    def _stepped(self, result: StepResult, began: float) -> None:
        """Deliver what the step that began at `began` made, while the next one runs."""
        self._undelivered.release()
        now = self._clock.monotonic()
        self._cached_tokens = result.cached_tokens
        for sequence in result.joined:
            stream = self._streams.get(sequence)
            if stream is not None and stream.started is None:  # not one that was paused
                stream.started = began
        for sequence, error in result.failed:
            log_failure(error)
            if (stream := self._streams.pop(sequence, None)) is not None:
                stream.end(error)
        for sequence, piece in result.pieces:
            if (stream := self._streams.get(sequence)) is not None:
                self._deliver(stream, piece, now)
                if piece.finish is not None:
                    del self._streams[sequence]
        self._pump()

    def _deliver(self, stream: TokenStream, piece: TokenPiece, now: float) -> None:
        if stream.first is None:
            stream.first = now
            self._metrics.first_token(now - stream.arrived, len(stream.sequence.request.prompt))
            self._meter.first_piece(now - stream.arrived)
        stream.last = now
        self._metrics.tokens(1)
        stream.put(piece)
        if piece.finish is not None:
            stream.end()
            self._metrics.ended(stream.sequence.generated, now - stream.first)
            queue = stream.timing.queue
            self._meter.batch(BatchStats(1, queue, now - stream.arrived - queue, streamed=True))

    def _drop(self, sequence: Sequence) -> None:
        if self._streams.pop(sequence, None) is not None:
            self._changes.append((self._batch.remove, sequence))
