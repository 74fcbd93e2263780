"""The steps that differ between kinds of models: language models, and models of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.events import ProgressListener
from mlctl.optimize.generation.attempt import GenerationAttempt
from mlctl.optimize.generation.source import SourceAnswers, prepare_language_model, run_source
from mlctl.optimize.inputs.prepare import OptimizeOptions, Prepared, prepare
from mlctl.optimize.proofs.source_graph import ExportedModel, export_source
from mlctl.optimize.recipes.base import Recipe
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.recipes.generation import GenerationRecipe
from mlctl.optimize.variants.attempt import Attempt
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.goals import Goals
from mlctl.registry.catalog import Catalog, SourceModel


def prepare_model(
    uri: str, data: str | Path, catalog: Catalog, options: OptimizeOptions
) -> Prepared:
    """Resolve the model and read its rows or texts; raises what `Catalog.resolve` raises too."""
    source = catalog.resolve(uri, allow_pickle=options.allow_pickle)
    if source.generates:
        return prepare_language_model(source, data, options)
    return prepare(source, data, options)


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
        if isinstance(recipe, GenerationRecipe) != source.generates:
            kind = "is" if source.generates else "is not"
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the recipe {recipe.name} does not fit: {source.uri} {kind} a language model",
                "The recipes gen-fp32, gen-fp16 and gen-int4 are for language models.",
            )
    return tuple(recipes)


def export_model(prepared: Prepared) -> ExportedModel:
    """Export the source model, or run the language model; raises as both do."""
    return run_source(prepared) if prepared.source.generates else export_source(prepared)


def start_attempt(
    exported: ExportedModel,
    goals: Goals,
    device: RunDevice,
    options: OptimizeOptions,
    progress: ProgressListener,
    clock: Clock,
    crashed: Mapping[str, str],
) -> Attempt:
    """Return what builds, judges and times the variants."""
    if isinstance(exported, SourceAnswers):
        return GenerationAttempt(exported, goals, device, progress, clock, options.fresh, crashed)
    return Attempt(exported, goals, device, progress, clock, options.fresh, crashed)
