"""The steps that differ between kinds of models: language models, and models of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from optimize.attempt import Attempt
from optimize.device import RunDevice
from optimize.events import ProgressListener
from optimize.generation.attempt import GenerationAttempt
from optimize.generation.source import SourceAnswers, prepare_language_model, run_source
from optimize.goals import Goals
from optimize.prepare import Options, Prepared, prepare
from optimize.recipes.base import Recipe
from optimize.recipes.discovery import select
from optimize.recipes.generation import GenerationRecipe
from optimize.source_graph import Exported, export_source
from registry.catalog import Catalog, SourceModel


def prepare_model(uri: str, data: str | Path, catalog: Catalog, options: Options) -> Prepared:
    """Resolve the model and read its rows or texts; raises what `Catalog.resolve` raises too."""
    source = catalog.resolve(uri, allow_pickle=options.allow_pickle)
    if source.generates:
        return prepare_language_model(source, data, options)
    return prepare(source, data, options)


def fitting_recipes(
    recipes: Sequence[Recipe] | None, source: SourceModel, options: Options
) -> tuple[Recipe, ...]:
    """Return `recipes`, or without any all for the target and this kind of model.

    INVALID_INPUT for a recipe that is for the other kind, or if the target has none.
    """
    chosen = select(None, options.target) if recipes is None else recipes
    fitting = [each for each in chosen if isinstance(each, GenerationRecipe) == source.generates]
    if fitting and (recipes is None or len(fitting) == len(recipes)):
        return tuple(fitting)
    if not fitting and recipes is None:
        problem = f"no recipe builds {source.uri} for {options.target}"
        raise MlctlError(ErrorCode.INVALID_INPUT, problem, "Language models are for --device cpu.")
    wrong = next(each.name for each in chosen if each not in fitting)
    kind = "is" if source.generates else "is not"
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the recipe {wrong} does not fit: {source.uri} {kind} a language model",
        "Recipes named gen-... are for language models, the others are not.",
    )


def export_model(prepared: Prepared) -> Exported:
    """Export the source model, or run the language model; raises as both do."""
    return run_source(prepared) if prepared.source.generates else export_source(prepared)


def start_attempt(
    exported: Exported,
    goals: Goals,
    device: RunDevice,
    options: Options,
    progress: ProgressListener,
    clock: Clock,
) -> Attempt:
    """Return what builds, judges and times the variants."""
    calibrator = options.calibrator
    if isinstance(exported, SourceAnswers):
        return GenerationAttempt(exported, goals, device, calibrator, progress, clock)
    return Attempt(exported, goals, device, calibrator, progress, clock)
