"""The kinds of models, with what an optimization does differently for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlctl.bundle.manifest import (
    GENERATION_FOLDER,
    GOLDEN_NAME,
    MODEL_NAME,
    Batching,
    Generation,
    InputConstraints,
)
from mlctl.core.clock import Clock
from mlctl.core.entries import LIST_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.generation.attempt import GenerationAttempt
from mlctl.optimize.generation.source import SourceAnswers, prepare_language_model, run_source
from mlctl.optimize.inputs.prepare import OptimizeOptions, Prepared, prepare
from mlctl.optimize.proofs.constraints import find_constraints
from mlctl.optimize.proofs.reference import load_reference
from mlctl.optimize.proofs.source_graph import ExportedModel, export_source
from mlctl.optimize.recipes.base import DATA_NAME, Recipe
from mlctl.optimize.recipes.discovery import fits, select
from mlctl.optimize.recipes.generation import read_generation
from mlctl.optimize.variants.attempt import Attempt
from mlctl.optimize.variants.time_limit import Pace, measure_pace
from mlctl.optimize.variants.variant import DETAILS_NAME, Variant
from mlctl.registry.catalog import SourceModel
from mlctl.services.model.golden import save_golden

GOLDEN_ROWS = 32


@dataclass(frozen=True, slots=True)
class Served:
    """How a variant is served, for the manifest."""

    batching: Batching
    input_constraints: InputConstraints | None = None
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class ModelKind:
    """The steps that differ between kinds of models.

    Attributes:
        prepare: reads rows or texts that fit the model.
        export: proves the source model's graph and computes its answers, which judge variants.
        describe: says in words what `export` found.
        attempt: builds, judges and times the variants.
        source_pace: measures the source model before its export; None where how long an answer
            takes depends on its text.
        write_files: writes the files of the variant in a folder, and golden rows, into a bundle.
        served: says how a variant is served.
    """

    prepare: Callable[[SourceModel, str | Path, OptimizeOptions], Prepared]
    export: Callable[[Prepared], ExportedModel]
    describe: Callable[[ExportedModel], str]
    attempt: type[Attempt]
    source_pace: Callable[[Prepared, Clock], Pace] | None
    write_files: Callable[[ExportedModel, Path, Path], None]
    served: Callable[[ExportedModel, Variant], Served]


def kind_of(source: SourceModel) -> ModelKind:
    """Return what the model is: a graph of tensors, or a causal language model."""
    return LANGUAGE_MODEL if source.generates else GRAPH


def fitting_recipes(
    recipes: Sequence[Recipe] | None, source: SourceModel, options: OptimizeOptions
) -> tuple[Recipe, ...]:
    """Return `recipes`, or without any all for the target and this kind of model.

    INVALID_INPUT for a recipe that is for the other kind, or if the target has none.
    """
    if recipes is None:
        found = select(None, options.target, generates=source.generates)
        if not found:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"no recipe builds {source.uri} for {options.target}",
                "Language models are built with --device cpu.",
            )
        return found
    for recipe in recipes:
        if not fits(recipe, generates=source.generates):
            kind = "is" if source.generates else "is not"
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the recipe {recipe.name} does not fit: {source.uri} {kind} a language model",
                "The recipes gen-fp32, gen-fp16 and gen-int4 are for language models.",
            )
    return tuple(recipes)


def _describe_graph(exported: ExportedModel) -> str:
    baseline = exported.baseline
    rows = "rows are independent" if baseline.row_independent else "rows depend on each other"
    return f"opset {exported.opset}, {baseline.rows.count} rows, {rows}"


def _source_pace(prepared: Prepared, clock: Clock) -> Pace:
    return measure_pace(load_reference(prepared.source).run, prepared.calibration, clock)


def _write_graph(exported: ExportedModel, model: Path, folder: Path) -> None:
    for name in (MODEL_NAME, DATA_NAME):
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    transform = exported.prepared.transform
    if transform is not None:
        transform.copy_into(folder)
    _write_golden(exported, folder / GOLDEN_NAME)


def _write_golden(exported: ExportedModel, path: Path) -> None:
    """Write rows for warm-up and parity checks with the source model's own answers."""
    prepared, baseline = exported.prepared, exported.baseline
    rows = prepared.raw.held_out.head(GOLDEN_ROWS)
    outputs = {name: array[: rows.count] for name, array in baseline.outputs.items()}
    if prepared.transform is not None:
        outputs = prepared.transform.postprocess(outputs)
    names = {spec.name for spec in prepared.api_signature.inputs}
    inputs = {name: array for name, array in rows.inputs.items() if name in names}
    features = {name: array for name, array in rows.inputs.items() if name not in names}
    save_golden(path, inputs, outputs, features)


def _serve_graph(exported: ExportedModel, variant: Variant) -> Served:
    assert variant.measured is not None
    batching = exported.baseline.batching_options.batching(
        row_independent=variant.measured.row_independent
    )
    return Served(batching, input_constraints=find_constraints(exported))


def _describe_texts(exported: ExportedModel) -> str:
    baseline = exported.baseline
    return f"perplexity {baseline.score:.4g} on {baseline.rows.count} texts"


def _write_folder(exported: ExportedModel, model: Path, folder: Path) -> None:
    assert isinstance(exported, SourceAnswers)
    records = shutil.ignore_patterns(DETAILS_NAME, LIST_NAME)
    shutil.copytree(model, folder / GENERATION_FOLDER, ignore=records)
    shutil.copyfile(exported.golden, folder / GOLDEN_NAME)


def _serve_folder(_: ExportedModel, variant: Variant) -> Served:
    assert variant.model is not None
    # The engine forms its own batches, token by token.
    batching = Batching(max_rows=1, buckets=(1,), row_independent=True)
    return Served(batching, generation=read_generation(variant.model))


GRAPH = ModelKind(
    prepare=prepare,
    export=export_source,
    describe=_describe_graph,
    attempt=Attempt,
    source_pace=_source_pace,
    write_files=_write_graph,
    served=_serve_graph,
)
LANGUAGE_MODEL = ModelKind(
    prepare=prepare_language_model,
    export=run_source,
    describe=_describe_texts,
    attempt=GenerationAttempt,
    source_pace=None,
    write_files=_write_folder,
    served=_serve_folder,
)
