"""A served language model: a `ServedModel` whose executor is the engine of services/generate."""

from __future__ import annotations

import asyncio

from mlctl.bundle.manifest import GOLDEN_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.engine import ContinuousBatch, GenerationRequest, complete
from mlctl.services.generate.loading import open_engine
from mlctl.services.generate.options import NO_TOKEN, PROMPT, TOKENS
from mlctl.services.generate.sampling import GREEDY
from mlctl.services.generate.text import TextCodec
from mlctl.services.model.golden import load_golden
from mlctl.services.online.batching.admission import Limits
from mlctl.services.online.batching.generation import GenerationExecutor, TokenStream
from mlctl.services.online.batching.preparation import RequestPreparation
from mlctl.services.online.metrics.counts import Metrics
from mlctl.services.online.metrics.generation import GenerationMetrics
from mlctl.services.online.models.served_model import ModelPhase, ServedModel, logger

_QUEUE = 256
_GOLDEN_PROMPTS = 8


class ServedGenerator(ServedModel):
    """One language model in one process."""

    _executor: GenerationExecutor
    _generation: GenerationMetrics | None = None

    @property
    def codec(self) -> TextCodec:
        """The model's tokenizer."""
        return self._executor.codec

    @property
    def preparation(self) -> RequestPreparation:
        """What turns prompts into tokens and grammars into matchers."""
        return self._executor.preparation

    @property
    def max_tokens(self) -> int:
        """The limit on a prompt with its answer, in tokens."""
        return self._executor.max_tokens

    @property
    def open_requests(self) -> int:
        """The requests that run or wait."""
        return self._executor.running_rows + self._executor.waiting_rows

    def generate(self, request: GenerationRequest, client: str) -> TokenStream:
        """Queue a request of `client`, whose first token must come within the deadline.

        Raises UNAVAILABLE unless ready, and what `GenerationExecutor.open` raises.
        """
        self._serving()
        return self._executor.open(request, self.settings.deadline_ms / 1000, client)

    async def start(self) -> None:
        """Load, check the golden prompts; raises the reason why the model must not serve."""
        batch = await asyncio.to_thread(self._load)
        settings = self.settings
        self._metrics = Metrics(self.name, self._registry, by_client=self.access.required)
        self.answered = self._metrics.answered
        self.counted = self._metrics.request
        capacity = settings.max_sequences * batch.max_tokens
        self._generation = GenerationMetrics(self.name, self._registry, capacity)
        self._observe()
        queue = settings.max_queue_rows or self._bundle.manifest.batching.max_queue_rows or _QUEUE
        self._batching = self._executor = GenerationExecutor(
            batch,
            Limits(max_rows=settings.max_sequences, max_queue_rows=queue),
            self._clock,
            self._metrics,
            self._generation,
            drain_seconds=settings.deadline_ms / 1000,
        )
        self.phase = ModelPhase.READY
        logger.info(
            "model %s (%s) is ready: %d sequences of up to %d tokens",
            *(self.name, self.digest[:12], settings.max_sequences, batch.max_tokens),
        )

    def publish(self) -> None:
        super().publish()
        if self._generation is not None:
            self._generation.publish()

    def _longest(self) -> float:
        return 0.0  # a step takes milliseconds; `hang_s` alone decides

    def _load(self) -> ContinuousBatch:
        batch = open_engine(self._bundle, self.settings)
        _ = batch.codec.guidance  # later it would hold up all requests
        self._check_golden(batch)
        return batch

    def _check_golden(self, batch: ContinuousBatch) -> None:
        """Answer golden prompts together, which also warms the model up.

        PARITY_FAILED if an fp32 model continues fewer than half of them as its source did: other
        processors add in another order, which may decide between two nearly equal tokens.
        """
        inputs, outputs = load_golden(self._bundle.path(GOLDEN_NAME))
        codec = batch.codec
        golden = list(zip(inputs[PROMPT], outputs[TOKENS], strict=True))
        requests, expected = [], []
        for prompt, row in golden[:_GOLDEN_PROMPTS]:
            tokens = codec.encode(prompt.decode())
            answer = [int(token) for token in row if token != NO_TOKEN]
            if len(tokens) + len(answer) < batch.max_tokens:
                requests.append(GenerationRequest(tuple(tokens), max(1, len(answer)), GREEDY))
                expected.append("".join(map(codec.pieces(), answer)))
        answers = [answer.text for answer in complete(batch, requests)]
        equal = sum(mine == theirs for mine, theirs in zip(answers, expected, strict=True))
        exact = self._bundle.manifest.variant.precision == "fp32"
        if exact and 2 * equal < len(expected):
            raise MlctlError(
                ErrorCode.PARITY_FAILED,
                f"{equal} of {len(expected)} golden prompts are continued as by the source model "
                "(minimum half)",
            )
