"""The life of one served model: verified, proved, warm, ready; then drained and stopped.

Nothing is answered before `start` has returned and nothing after `stop` was called.
HTTP, gRPC and BentoML's own API all ask the model through `infer`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping
from enum import Enum
from typing import NoReturn

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batcher import Limits
from services.batching import Answer, Batching
from services.metrics import GONE, OK, Metrics
from services.scorer import Scorer
from services.settings import Settings
from services.warmup import check_golden, warm_up

# A batch that takes less is run on the event loop: the hop to a thread would cost more.
_INLINE_SECONDS = 0.0005
_INLINE_HEADROOM = 2.0
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
        self._metrics: Metrics | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.phase is Phase.READY

    async def start(self) -> None:
        """Load, check the golden rows, warm up; raises the reason why the model must not serve."""
        scorer, seconds = await asyncio.to_thread(self._prepare)
        self._metrics = Metrics(self.name, self._registry)
        inline = seconds * _INLINE_HEADROOM < _INLINE_SECONDS
        self._batching = Batching(
            scorer, self._limits(scorer), self._clock, self._metrics, inline=inline
        )
        # What was loaded so far lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        self.phase = Phase.READY
        logger.info("model %s (%s) is ready, inline=%s", self.name, self.digest[:12], inline)

    def infer(
        self, inputs: dict[str, np.ndarray], timeout: float | None = None
    ) -> asyncio.Future[Answer]:
        """Ask the model; cancel the future to leave. `timeout` can only shorten the deadline.

        Raises UNAVAILABLE unless ready, and what `Batching.submit` raises.
        """
        if not self.ready or self._batching is None:
            raise MlctlError(ErrorCode.UNAVAILABLE, f"model {self.name!r} is {self.phase.value}")
        limit = self.settings.deadline_ms / 1000
        return self._batching.submit(inputs, limit if timeout is None else min(limit, timeout))

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

    async def stop(self) -> None:
        """Accept no more, answer what was accepted (each within its deadline), end the thread."""
        self.phase = Phase.STOPPING
        if self._batching is not None:
            await self._batching.drain()
            self._batching.close()

    def _prepare(self) -> tuple[Scorer, float]:
        scorer = Scorer.open(self._bundle, self.settings)
        golden = check_golden(scorer, self._bundle)
        return scorer, warm_up(scorer, golden, self._clock)

    def _limits(self, scorer: Scorer) -> Limits:
        return Limits(
            max_rows=scorer.max_rows,
            max_queue_rows=self.settings.max_queue_rows,
            max_wait=self.settings.max_wait_ms / 1000,
            joinable=scorer.joinable,
        )


def require_model(host: ModelHost, name: str, version: str = "") -> None:
    """MODEL_NOT_FOUND unless `host` serves `name`, in `version` (its digest) if one is given."""
    if name != host.name:
        _not_found(f"no model {name!r} here; this server has {host.name!r}")
    if version not in ("", host.digest):
        _not_found(f"no version {version!r} of model {name!r} here; this server has {host.digest}")


def metadata_tensors(host: ModelHost) -> Mapping[str, list[tuple[str, str, list[int]]]]:
    """Name, datatype and shape of the inputs and of the outputs, as V2 metadata gives them."""
    sides = {"inputs": host.signature.inputs, "outputs": host.signature.outputs}
    return {
        side: [(spec.name, spec.dtype.value, list(spec.shape)) for spec in specs]
        for side, specs in sides.items()
    }


def _not_found(message: str) -> NoReturn:
    raise MlctlError(
        ErrorCode.MODEL_NOT_FOUND, message, "GET /v2/models/NAME tells the versions of a model."
    )
