"""A pipeline as a scorer: runs the scorers of its stages one after the other, in this process.

Batch and stream runners use it like `Scorer`. Its answers equal those of a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import NO_MISSING, MissingValues, Signature
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import MlctlError
from mlctl.services.model.input_checks import check_inputs
from mlctl.services.model.pipeline import Pipeline, pipeline_signature, with_stage

if TYPE_CHECKING:
    from mlctl.services.layout.bento_layout import BentoContents
    from mlctl.services.model.scorer import Scorer


@dataclass(frozen=True, slots=True)
class VerifiedPipeline:
    """The verified bundles of a pipeline's stages, in order; `digest` is the Bento's."""

    name: str
    digest: str
    signature: Signature
    pipeline: Pipeline
    stages: tuple[VerifiedBundle, ...]
    missing: MissingValues = NO_MISSING

    @classmethod
    def of(cls, contents: BentoContents) -> VerifiedPipeline | None:
        """Return the pipeline of a Bento; None if its models are not a pipeline."""
        pipeline = None if contents.bento_manifest is None else contents.bento_manifest.pipeline
        if pipeline is None:
            return None
        bundles = {bundle.name: bundle for bundle in contents.bundles}
        signatures = {name: each.signature for name, each in bundles.items()}
        signature = pipeline_signature(pipeline, signatures)
        stages = tuple(bundles[stage] for stage in pipeline.stages)
        return cls(contents.name, contents.digest, signature, pipeline, stages)


class PipelineScorer:
    """All stages behind one signature. Call `run` from one thread at a time unless `thread_safe`.

    At most `max_rows` rows, the smallest limit of all stages, go through the stages at a time.
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
        # A stage on a device decides how runners schedule the whole pipeline.
        devices = (stage.provider for stage in stages if stage.provider != "cpu")
        self.provider = next(devices, "cpu")
        self._pipeline = whole.pipeline
        self._stages = stages
        self._inputs = {spec.name: spec for spec in whole.signature.inputs}

    def check(self, inputs: Arrays) -> int:
        """Check `inputs` and return their rows; each stage checks its own inputs as well."""
        return check_inputs(self._inputs, inputs, batched=self.batched)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Return the last stage's outputs for checked `inputs`; errors name the stage.

        Raises what `Scorer.run` raises, and INVALID_INPUT if a stage's outputs do not match the
        next stage's inputs.
        """
        from mlctl.services.model.scorer import join_rows, split_rows

        if not self.joinable or next(iter(inputs.values())).shape[0] <= self.max_rows:
            return self._run(inputs)
        return join_rows([self._run(part) for part in split_rows(inputs, self.max_rows)])

    def _run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        made: dict[str, Mapping[str, np.ndarray]] = {}
        outputs: dict[str, np.ndarray] = {}
        for stage in self._stages:
            stage_inputs = self._pipeline.gather(stage.name, stage.signature, inputs, made)
            try:
                stage.check(stage_inputs)
                outputs = stage.run(stage_inputs)
            except MlctlError as error:
                # Runners read the runtime's text from the direct cause of the error.
                raise with_stage(error, stage.name) from (error.__cause__ or error)
            made[stage.name] = outputs
        return outputs
