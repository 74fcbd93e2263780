"""Several models in one process, each with its own session, batcher, counts and phase.

They share what belongs to the server: settings, tokens, the bytes in flight, draining. The server
is ready when all models are, and a model that hangs ends the worker. A `ServedModel` alone has the
same interface: a server with one model. A pipeline is the first of several models and calls the
others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import require_packages
from mlctl.services.layout.bento_layout import BentoContents
from mlctl.services.online.batching.admission import Inflight
from mlctl.services.online.models.pipeline import ServedPipeline
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.wire import shown


class ModelRepository:
    """The models of one Bento with several."""

    def __init__(
        self,
        packed: BentoContents,
        settings: ServerSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.name = packed.name
        self.digest = packed.digest
        self.settings = settings
        self.access = settings.access()
        self.inflight = Inflight(settings.max_inflight_bytes)
        self.draining = False
        self.turned = asyncio.Event()
        pipeline = None if packed.bento_manifest is None else packed.bento_manifest.pipeline
        # One folder of samples holds the rows of one signature: the default model's.
        others = settings.model_copy(update={"sample_dir": None})
        self._models = tuple(
            _served(
                bundle,
                others if number or pipeline else settings,
                clock=clock,
                registry=registry,
                inflight=self.inflight,
                access=self.access,
            )
            for number, bundle in enumerate(packed.bundles)
        )
        self._pipelines: tuple[ServedPipeline, ...] = ()
        if pipeline is not None:
            stages = {served.name: served for served in self._models}
            whole = ServedPipeline(packed, stages, settings, registry)
            self._pipelines = (whole,)
        self.models: tuple[ServedModel, ...] = (*self._pipelines, *self._models)
        self._by_name = {served.name: served for served in self.models}

    @property
    def max_body_bytes(self) -> int:
        """The largest limit of a model."""
        return max(model.max_body_bytes for model in self.models)

    @property
    def ready(self) -> bool:
        """Whether all models are ready."""
        return all(served.ready for served in self.models)

    @property
    def live(self) -> bool:
        """False once one model's run hangs: a restart of the process is what helps it.

        All are checked, so that each model that hangs is logged.
        """
        found = [served.live for served in self.models]
        return all(found)

    @property
    def state(self) -> str:
        """The state of the first model that is not ready, else "ready"."""
        return next((served.state for served in self.models if not served.ready), "ready")

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return the model `name`; MODEL_NOT_FOUND lists the models."""
        served = self._by_name.get(name)
        if served is None:
            names = ", ".join(map(repr, self._by_name))
            what = f"{name!r} is several models" if name == self.name else f"no model {shown(name)}"
            raise MlctlError(
                ErrorCode.MODEL_NOT_FOUND,
                f"{what} here; this server has {names}",
                "POST /v2/repository/index lists the models of a server.",
            )
        return served.find(name, version)

    def drain(self) -> None:
        """Drain all models; see `ServedModel.drain`."""
        self.draining = True
        for served in self.models:
            served.drain()
        turned, self.turned = self.turned, asyncio.Event()
        turned.set()

    def publish(self) -> None:
        """See `ServedModel.publish`."""
        for served in self.models:
            served.publish()

    async def start(self) -> None:
        """Start one model after the other, because warm-up times each with the machine to itself.

        An error names the model that must not serve.
        """
        for served in (*self._models, *self._pipelines):
            try:
                await served.start()
            except MlctlError as error:
                message = f"model {served.name!r}: {error.message}"
                raise MlctlError(error.code, message, error.hint) from error

    async def stop(self) -> None:
        """Stop all models at once, after the pipeline that uses them."""
        for pipeline in self._pipelines:
            await pipeline.stop()
        await asyncio.gather(*(served.stop() for served in self._models))

    def abandon(self) -> None:
        """Fail what is open at all models: the process ends."""
        for served in self.models:
            served.abandon()


# What a server serves. `models` holds all models, the default one first; `name` and `digest` are
# those of the model, or of all models together.
Serving = ServedModel | ModelRepository


def serving_of(packed: BentoContents, settings: ServerSettings) -> Serving:
    """Return what serves the bundles of one Bento."""
    if packed.bento_manifest is None:
        return _served(packed.bundles[0], settings)
    return ModelRepository(packed, settings)


def _served(bundle: VerifiedBundle, settings: ServerSettings, **shared: Any) -> ServedModel:
    if bundle.manifest.generation is None:
        return ServedModel(bundle, settings, **shared)
    # Only the images of language models have its packages.
    require_packages("generate", "llguidance", "tokenizers")
    from mlctl.services.online.models.generator import ServedGenerator

    return ServedGenerator(bundle, settings, **shared)
