"""A pipeline of models: which output of which stage feeds which input, checked before a build.

Pure. An input that no earlier stage feeds comes from the caller; the outputs of the pipeline are
those of its last stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import Name
from mlctl.bundle.tensors import DYNAMIC, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError

Signatures = Mapping[str, Signature]
# A stage and one of its outputs.
Origin = tuple[str, str]


class Pipeline(BaseModel):
    """The stages in order, and `feeds`: by stage and input name the output that feeds it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    stages: Annotated[tuple[Name, ...], Field(min_length=2)]
    feeds: dict[Name, dict[str, tuple[Name, str]]]

    def origin(self, stage: str, tensor: str) -> Origin | None:
        """Return the output that feeds this input; None if it comes from the caller."""
        return self.feeds.get(stage, {}).get(tensor)

    def gather(
        self, stage: str, signature: Signature, inputs: Arrays, made: Mapping[str, Arrays]
    ) -> dict[str, np.ndarray]:
        """Collect the inputs of `stage` from the caller's `inputs` and the outputs in `made`."""
        found = {}
        for spec in signature.inputs:
            origin = self.origin(stage, spec.name)
            found[spec.name] = inputs[spec.name] if origin is None else made[origin[0]][origin[1]]
        return found


def make_pipeline(signatures: Signatures, maps: Sequence[str] = ()) -> Pipeline:
    """Make a pipeline of models in this order: outputs feed the next stage's inputs by name.

    Each of `maps`, "STAGE.INPUT=STAGE.OUTPUT", overrides this. INVALID_INPUT names the stage and
    the tensor that does not match.
    """
    stages = tuple(signatures)
    feeds: dict[str, dict[str, Origin]] = {}
    for before, stage in pairwise(stages):
        given = {spec.name for spec in signatures[before].outputs}
        wanted = (spec.name for spec in signatures[stage].inputs)
        feeds[stage] = {name: (before, name) for name in wanted if name in given}
    for text in maps:
        left, _, right = text.partition("=")
        stage, tensor = _tensor(stages, left, text)
        feeds.setdefault(stage, {})[tensor] = _tensor(stages, right, text)
    made = Pipeline(stages=stages, feeds={stage: fed for stage, fed in feeds.items() if fed})
    pipeline_signature(made, signatures)
    return made


def pipeline_signature(pipeline: Pipeline, signatures: Signatures) -> Signature:
    """Return the pipeline's inputs and outputs; INVALID_INPUT if its stages do not match."""
    if set(signatures) != set(pipeline.stages) or len(signatures) < len(pipeline.stages):
        raise _wrong("the stages of the pipeline are not the models of the Bento")
    if len({signatures[stage].batched for stage in pipeline.stages}) > 1:
        first, *others = pipeline.stages
        like = signatures[first].batched
        other = next(name for name in others if signatures[name].batched is not like)
        having, lacking = (first, other) if like else (other, first)
        raise _wrong(f"stage {having!r} takes rows in batches, stage {lacking!r} does not")
    for stage, fed in pipeline.feeds.items():
        for tensor, origin in fed.items():
            _check_feed(pipeline, signatures, (stage, tensor), origin)
    used = {source for fed in pipeline.feeds.values() for source, _ in fed.values()}
    for stage in pipeline.stages[:-1]:
        if stage not in used:
            given = ", ".join(spec.name for spec in signatures[stage].outputs)
            raise _wrong(f"no output of stage {stage!r} ({given}) feeds an input of a later stage")
    inputs = tuple(_from_caller(pipeline, signatures))
    if not inputs:
        raise _wrong("every input is fed by a stage, so the pipeline has no inputs")
    return Signature(inputs=inputs, outputs=signatures[pipeline.stages[-1]].outputs)


def with_stage(error: MlctlError, stage: str) -> MlctlError:
    """Return a copy of `error` whose message names the stage.

    The class and other attributes, such as the time to retry, are kept. A copy, because all
    requests of a batch share the error.
    """
    copy = type(error).__new__(type(error))
    copy.__dict__.update(vars(error))
    MlctlError.__init__(copy, error.code, f"stage {stage!r}: {error.message}", error.hint)
    return copy


def _check_feed(pipeline: Pipeline, signatures: Signatures, to: Origin, origin: Origin) -> None:
    unknown = next((name for name, _ in (to, origin) if name not in signatures), None)
    if unknown is not None:
        raise _wrong(f"the pipeline has no stage {unknown!r}; it has {', '.join(pipeline.stages)}")
    wanted = _find(signatures[to[0]].inputs, to, "input")
    given = _find(signatures[origin[0]].outputs, origin, "output")
    if pipeline.stages.index(origin[0]) >= pipeline.stages.index(to[0]):
        raise _wrong(f"stage {origin[0]!r} does not run before stage {to[0]!r}, which it feeds")
    fits = len(wanted.shape) == len(given.shape) and all(
        DYNAMIC in pair or pair[0] == pair[1]
        for pair in zip(wanted.shape, given.shape, strict=True)
    )
    if wanted.dtype is not given.dtype or not fits:
        raise _wrong(
            f"output {origin[1]!r} of stage {origin[0]!r} is {_form(given)}, "
            f"input {to[1]!r} of stage {to[0]!r} is {_form(wanted)}"
        )


def _from_caller(pipeline: Pipeline, signatures: Signatures) -> Iterator[TensorSpec]:
    """Yield the inputs that no stage feeds; several stages may share one."""
    met: dict[str, tuple[str, TensorSpec]] = {}
    for stage in pipeline.stages:
        for spec in signatures[stage].inputs:
            if pipeline.origin(stage, spec.name) is not None:
                continue
            if spec.name not in met:
                met[spec.name] = stage, spec
                yield spec
            elif (other := met[spec.name])[1] != spec:
                raise _wrong(
                    f"input {spec.name!r} is {_form(other[1])} for stage {other[0]!r}, "
                    f"{_form(spec)} for stage {stage!r}"
                )


def _tensor(stages: Sequence[str], text: str, whole: str) -> Origin:
    """Split STAGE.TENSOR; both names may contain dots."""
    found = [
        stage for stage in stages if text.startswith(f"{stage}.") and len(text) > len(stage) + 1
    ]
    if not found:
        raise _wrong(
            f"{whole!r}: {text!r} does not begin with a stage; the stages are {', '.join(stages)}",
            "Write it as --connect STAGE.INPUT=STAGE.OUTPUT.",
        )
    stage = max(found, key=len)
    return stage, text[len(stage) + 1 :]


def _find(specs: Sequence[TensorSpec], origin: Origin, side: str) -> TensorSpec:
    for spec in specs:
        if spec.name == origin[1]:
            return spec
    known = ", ".join(repr(spec.name) for spec in specs)
    raise _wrong(f"stage {origin[0]!r} has no {side} {origin[1]!r}; it has {known}")


def _form(spec: TensorSpec) -> str:
    return f"{spec.dtype.value} {list(spec.shape)}"


def _wrong(message: str, hint: str | None = None) -> MlctlError:
    hint = hint or "--connect STAGE.INPUT=STAGE.OUTPUT sets which output feeds which input."
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)
