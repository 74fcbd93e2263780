"""A pipeline as one more scorer: its stages' scorers, one after the other, in this process.

What batches and streams ask of `Scorer`, they may ask of it. Its answers are those of a
server that has the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bundle.errors import MlctlError
from bundle.tensors import Signature
from bundle.verify import VerifiedBundle
from services.runtime.input_checks import check_inputs
from services.runtime.pipeline import Arrays, Pipeline, pipeline_signature, with_stage

if TYPE_CHECKING:
    from services.runtime.bento_layout import BentoContents
    from services.runtime.scorer import Scorer


@dataclass(frozen=True, slots=True)
class VerifiedPipeline:
    """The verified bundles of a pipeline's stages, in their order; `digest` is the Bento's."""

    name: str
    digest: str
    signature: Signature
    pipeline: Pipeline
    stages: tuple[VerifiedBundle, ...]

    @classmethod
    def of(cls, packed: BentoContents) -> VerifiedPipeline | None:
        """The pipeline of a Bento; None if its models are none."""
        pipeline = None if packed.bento_manifest is None else packed.bento_manifest.pipeline
        if pipeline is None:
            return None
        bundles = {bundle.name: bundle for bundle in packed.bundles}
        signatures = {name: each.signature for name, each in bundles.items()}
        signature = pipeline_signature(pipeline, signatures)
        stages = tuple(bundles[stage] for stage in pipeline.stages)
        return cls(packed.name, packed.digest, signature, pipeline, stages)


class PipelineScorer:
    """All stages behind one signature. `run` is for one thread at a time unless `shared`.

    Between the stages are at most `max_rows` rows, as many as the most careful of them takes.
    """

    def __init__(self, whole: VerifiedPipeline, stages: tuple[Scorer, ...]) -> None:
        """`stages` are the scorers of `whole.stages`."""
        self.name = whole.name
        self.digest = whole.digest
        self.signature = whole.signature
        self.batched = whole.signature.batched
        self.joinable = all(stage.joinable for stage in stages)
        self.max_rows = min(stage.max_rows for stage in stages)
        self.thread_safe = all(stage.thread_safe for stage in stages)
        # What runs on a device decides how the others are arranged around it.
        devices = (stage.provider for stage in stages if stage.provider != "cpu")
        self.provider = next(devices, "cpu")
        self._pipeline = whole.pipeline
        self._stages = stages
        self._inputs = {spec.name: spec for spec in whole.signature.inputs}

    def check(self, inputs: Arrays) -> int:
        """How many rows `inputs` have; see `Scorer.check`. A stage checks what it is fed itself."""
        return check_inputs(self._inputs, inputs, batched=self.batched)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The last stage's outputs for checked `inputs`; what `Scorer.run` raises names the stage.

        INVALID_INPUT too if what a stage gives is not what the next one takes.
        """
        from services.runtime.scorer import join_rows, split_rows

        if not self.joinable or next(iter(inputs.values())).shape[0] <= self.max_rows:
            return self._run(inputs)
        return join_rows([self._run(part) for part in split_rows(inputs, self.max_rows)])

    def _run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        made: dict[str, Mapping[str, np.ndarray]] = {}
        outputs: dict[str, np.ndarray] = {}
        for stage in self._stages:
            given = self._pipeline.gather(stage.name, stage.signature, inputs, made)
            try:
                stage.check(given)
                outputs = stage.run(given)
            except MlctlError as error:
                # What the runtime said is looked for right behind the error.
                raise with_stage(error, stage.name) from (error.__cause__ or error)
            made[stage.name] = outputs
        return outputs
