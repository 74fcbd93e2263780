"""A pipeline as one more model of a server: it calls its stages' models in order.

Each stage has its own batcher, so that requests which came at different times, or to the
stage alone, share its batches. The caller's deadline is that of all stages together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
from prometheus_client import CollectorRegistry

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import NO_MISSING
from mlctl.core.errors import MlctlError
from mlctl.services.layout.bento_layout import BentoContents
from mlctl.services.model.input_checks import check_inputs
from mlctl.services.model.pipeline import with_stage
from mlctl.services.online.batching.model_executor import forward, one_piece
from mlctl.services.online.batching.scheduler import Limits, Priority, deadline_exceeded
from mlctl.services.online.batching.split import Cancellable, Waiter
from mlctl.services.online.batching.streaming import Answer, AnswerStream
from mlctl.services.online.metrics.counts import Metrics
from mlctl.services.online.models.served_model import ModelPhase, ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.wire import InferRequest


class ServedPipeline(ServedModel):
    """A pipeline with the interface of a `ServedModel`, without a model of its own."""

    def __init__(
        self,
        packed: BentoContents,
        stages: Mapping[str, ServedModel],
        settings: ServerSettings,
        registry: CollectorRegistry,
    ) -> None:
        """Serve the pipeline of `packed`, whose models are `stages`."""
        assert packed.bento_manifest is not None
        assert packed.bento_manifest.pipeline is not None
        self._pipeline = packed.bento_manifest.pipeline
        self._stages = tuple(stages[stage] for stage in self._pipeline.stages)
        inflight, access = self._stages[0].inflight, self._stages[0].access
        super().__init__(
            packed.bundles[0], settings, registry=registry, inflight=inflight, access=access
        )
        self.name = packed.name
        self.digest = packed.digest
        self.missing = NO_MISSING
        self.signature = packed.signature
        self.max_body_bytes = self._stages[0].max_body_bytes
        self._inputs = {spec.name: spec for spec in self.signature.inputs}
        self._open: set[asyncio.Task[Answer]] = set()

    @property
    def ready(self) -> bool:
        """Whether the pipeline and all its stages are ready."""
        return super().ready and all(stage.ready for stage in self._stages)

    @property
    def state(self) -> str:
        """The state of the first stage that is not ready, else its own."""
        found = (stage.state for stage in self._stages if not stage.ready)
        return next(found, super().state) if self.phase is ModelPhase.READY else self.phase.value

    @property
    def limits(self) -> Limits | None:
        """The limits of the first stage, where requests queue first; None before the start."""
        return None if self.phase is ModelPhase.NEW else self._stages[0].limits

    async def start(self) -> None:
        """Begin to serve; the stages were started, proved and warmed up before."""
        self._metrics = Metrics(self.name, self._registry, by_client=self.access.required)
        self.answered = self._metrics.answered
        self.counted = self._metrics.request
        self._observe()
        self.phase = ModelPhase.READY

    def infer(
        self,
        inputs: dict[str, np.ndarray],
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> asyncio.Future[Answer]:
        """Run all stages; cancel the future to withdraw the request from the current stage."""
        if self.phase is not ModelPhase.READY:
            raise self._unavailable()
        # A later stage would reject them only after others have run.
        check_inputs(self._inputs, inputs, batched=self.signature.batched)
        run = self._run(inputs, self._seconds(timeout), priority)
        task = asyncio.get_running_loop().create_task(run)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    def handle(
        self, request: InferRequest, waiter: Waiter, timeout: float | None, priority: Priority
    ) -> Cancellable:
        """Run all stages and answer to `waiter`: nothing of a pipeline is precomputed."""
        return forward(self.infer(request.inputs, timeout, priority), waiter)

    def stream(
        self,
        inputs: dict[str, np.ndarray],
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> AnswerStream:
        """Return the whole answer as one piece."""
        return one_piece(self.infer(inputs, timeout, priority))

    async def stop(self, grace: float = 0.0) -> None:
        """Accept no more, and answer what was accepted; the stages are stopped after it."""
        self.phase = ModelPhase.STOPPING
        if self._open:
            await asyncio.wait(self._open)
        await super().stop(grace)

    async def _run(self, inputs: Arrays, seconds: float, priority: Priority) -> Answer:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        made: dict[str, Arrays] = {}
        queued = ran = 0.0
        for stage in self._stages:
            left = end - loop.time()
            try:
                if left <= 0:
                    raise deadline_exceeded()
                stage_inputs = self._pipeline.gather(stage.name, stage.signature, inputs, made)
                answer = await stage.infer(stage_inputs, left, priority)
            except MlctlError as error:
                raise with_stage(error, stage.name) from error
            made[stage.name] = answer.outputs
            queued += answer.queue_seconds
            ran += answer.infer_seconds
        return answer._replace(queue_seconds=queued, infer_seconds=ran)
