"""The recipes: mlctl's own, and those of installed packages.

A package adds a recipe with an entry point in the group `mlctl.recipes`: the recipe's
name, and the class or object that is the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line, quiet
from mlctl.core.text import printable, suggestion
from mlctl.optimize.recipes.base import Precision, Recipe, Target
from mlctl.optimize.recipes.fp16 import Fp16
from mlctl.optimize.recipes.fp32 import Fp32
from mlctl.optimize.recipes.generation import GenerationRecipe
from mlctl.optimize.recipes.quantized import Int4, Int4Trt, Int8Dynamic, Int8Static, Int8Trt

GROUP = "mlctl.recipes"

OWN: tuple[Recipe, ...] = (
    *(Fp32(), Fp16(), Int8Static(), Int8Dynamic(), Int8Trt(), Int4(), Int4Trt()),
    *(GenerationRecipe("fp32"), GenerationRecipe("fp16"), GenerationRecipe("int4")),
)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def discover() -> tuple[Recipe, ...]:
    """Return mlctl's recipes, fp32 first, then those of installed packages by name.

    INVALID_INPUT names the package of a recipe that cannot be loaded, or whose name is taken.
    """
    found = {recipe.name: recipe for recipe in OWN}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in found:
            raise _unusable(entry, "another recipe has its name")
        try:
            with quiet():
                found[entry.name] = _load(entry)
        except (Exception, SystemExit) as error:  # code of another package runs here
            raise _unusable(entry, f"{type(error).__name__}: {first_line(error)}") from error
    return tuple(found.values())


def select(
    names: Sequence[str] | None, target: Target, *, generates: bool = False
) -> tuple[Recipe, ...]:
    """Return the recipes called `names`, each once.

    None takes all that support `target`, for language models if `generates`, else for all others.

    INVALID_INPUT for a name that does not exist or does not support `target`, and for no name.
    """
    recipes = {recipe.name: recipe for recipe in discover()}
    supported = [recipe for recipe in recipes.values() if target in recipe.targets]
    if names is None:
        return tuple(recipe for recipe in supported if fits(recipe, generates=generates))
    problem = "" if names else "no recipe is named"
    for name in names:
        if name not in recipes:
            near = suggestion(name, recipes, "recipes")
            problem = f"there is no recipe {printable(name)!r}; {near}"
        elif recipes[name] not in supported:
            targets = ", ".join(sorted(recipes[name].targets))
            problem = f"the recipe {name!r} is not for the target {target}, it is for {targets}"
    if problem:
        listed = ", ".join(recipe.name for recipe in supported)
        raise MlctlError(ErrorCode.INVALID_INPUT, problem, f"Recipes for {target}: {listed}.")
    return tuple(recipes[name] for name in dict.fromkeys(names))


def fits(recipe: Recipe, *, generates: bool) -> bool:
    """Return whether the recipe is for language models if `generates`, else for all others."""
    return isinstance(recipe, GenerationRecipe) == generates


def _load(entry: EntryPoint) -> Recipe:
    """Return the recipe of another package; ValueError if it is none."""
    loaded: Any = entry.load()
    recipe: Recipe = loaded() if isinstance(loaded, type) else loaded
    if not _NAME.fullmatch(entry.name) or recipe.name != entry.name:
        raise ValueError(
            f"its name is {recipe.name!r}; it must be {entry.name!r}, in a-z, 0-9 and -"
        )
    if recipe.precision not in get_args(Precision):
        raise ValueError(f"its precision is not one of {', '.join(get_args(Precision))}")
    if not recipe.targets <= frozenset(Target):
        raise ValueError("its targets are not a frozenset of mlctl.optimize.recipes.base.Target")
    return recipe


def _unusable(entry: EntryPoint, reason: str) -> MlctlError:
    package = "an unnamed package" if entry.dist is None else entry.dist.name
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the recipe {printable(entry.name)!r} of {package} cannot be used: {printable(reason)}",
        f"Uninstall or repair {package}.",
    )
