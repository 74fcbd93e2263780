"""Making and measuring one variant, through the cache; a failure becomes its result."""

from __future__ import annotations

from pathlib import Path

from bundle.clock import Clock
from bundle.manifest import MODEL_NAME
from optimize.cache import Entry, Key, fetch_or_build, versions
from optimize.checks import check_graph
from optimize.events import Event, Progress, Stage, Status
from optimize.evidence import conditions
from optimize.exported import Exported
from optimize.judge import measure_variant
from optimize.recipes import Recipe
from optimize.variant import Variant, load_measured, save_measured
from registry.quiet import first_line


def make_variant(recipe: Recipe, exported: Exported, progress: Progress, clock: Clock) -> Variant:
    """Build, check and measure `recipe`'s variant, or take it from the cache.

    What goes wrong with the recipe is the variant's `failure`; errors of the disk pass
    through.
    """
    progress.event(Event(Stage.VARIANT, Status.STARTED, recipe.name))
    try:
        entry = variant_entry(recipe, exported, clock)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a recipe's library raises is its reason
        reason = first_line(error)
        progress.event(Event(Stage.VARIANT, Status.FAILED, recipe.name, reason))
        return Variant(recipe.name, recipe.precision, None, failure=reason)
    status = Status.CACHED if entry.reused else Status.FINISHED
    progress.event(Event(Stage.VARIANT, status, recipe.name))
    return Variant(recipe.name, recipe.precision, load_measured(entry.root), entry.root)


def variant_entry(recipe: Recipe, exported: Exported, clock: Clock) -> Entry:
    """The cache entry with the variant's model and its numbers."""

    def build(directory: Path) -> None:
        recipe.build(exported.graph, directory, exported.calibration)
        opset = check_graph(directory / MODEL_NAME, exported.source.signature, None)
        save_measured(measure_variant(directory, opset, exported.baseline, clock), directory)

    return fetch_or_build(_key(recipe, exported), build)


def _key(recipe: Recipe, exported: Exported) -> Key:
    return {
        "kind": "variant",
        "export": exported.key,
        "recipe": recipe.name,
        "version": recipe.version,
        "processor": str(conditions()["processor"]),
        "libraries": versions("onnx", "onnxruntime", "onnxruntime-gpu"),
    }
