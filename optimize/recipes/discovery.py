"""Finding recipes: mlctl's own, and those that installed packages bring.

A package adds a recipe with an entry point in the group `mlctl.recipes`: the recipe's
name, and the class or object that is the recipe. mlctl's own are listed here and not as
entry points, which an installation made before a recipe was written would lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from bundle.errors import ErrorCode, MlctlError
from optimize.recipes.base import Precision, Recipe, Target
from optimize.recipes.bf16 import Bf16
from optimize.recipes.fp16 import Fp16
from optimize.recipes.fp32 import Fp32
from optimize.recipes.int4 import Int4
from optimize.recipes.int8_cpu import Int8Cpu
from optimize.recipes.int8_trt import Int8Trt
from registry.names import printable, suggestion
from registry.quiet import first_line, quiet

GROUP = "mlctl.recipes"

OWN: tuple[Recipe, ...] = (Fp32(), Fp16(), Bf16(), Int8Cpu(), Int8Trt(), Int4())

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def discover() -> tuple[Recipe, ...]:
    """Return mlctl's recipes, fp32 first, then those of installed packages by name.

    INVALID_INPUT names the package whose recipe cannot be loaded, or has a name that is taken.
    """
    found = {recipe.name: recipe for recipe in OWN}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in found:
            raise _unusable(entry, "another recipe has its name")
        found[entry.name] = _load(entry)
    return tuple(found.values())


def select(names: Sequence[str] | None, target: Target) -> tuple[Recipe, ...]:
    """The recipes called `names`, each once; None takes all that are for `target`.

    INVALID_INPUT for a name that is not known or not for `target`, or for no name at all.
    """
    known = {recipe.name: recipe for recipe in discover()}
    if names is None:
        return tuple(recipe for recipe in known.values() if target in recipe.targets)
    if not names:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "no recipe is named",
            f"Recipes for {target.value}: {_listed(known.values(), target)}.",
        )
    return tuple(_selected(name, known, target) for name in dict.fromkeys(names))


def _selected(name: str, known: dict[str, Recipe], target: Target) -> Recipe:
    recipe = known.get(name)
    if recipe is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"there is no recipe {printable(name)!r}; {suggestion(name, known, 'recipes')}",
            f"Recipes for {target.value}: {_listed(known.values(), target)}.",
        )
    if target not in recipe.targets:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the recipe {name!r} is not for the target {target.value}, it is for "
            + ", ".join(sorted(item.value for item in recipe.targets)),
            f"Recipes for {target.value}: {_listed(known.values(), target)}.",
        )
    return recipe


def _listed(recipes: Iterable[Recipe], target: Target) -> str:
    return ", ".join(recipe.name for recipe in recipes if target in recipe.targets)


def _load(entry: EntryPoint) -> Recipe:
    try:
        with quiet():
            loaded: Any = entry.load()
            return _checked(loaded() if isinstance(loaded, type) else loaded, entry.name)
    except (Exception, SystemExit) as error:  # code of another package runs in there
        raise _unusable(entry, f"{type(error).__name__}: {first_line(error)}") from error


def _checked(recipe: Recipe, name: str) -> Recipe:
    if not _NAME.fullmatch(name) or recipe.name != name:
        raise ValueError(f"its name is {recipe.name!r}; it must be {name!r}, in a-z, 0-9 and -")
    if recipe.precision not in get_args(Precision):
        raise ValueError(f"its precision is not one of {', '.join(get_args(Precision))}")
    if not recipe.targets <= frozenset(Target):
        raise ValueError("its targets are not a frozenset of optimize.recipes.base.Target")
    return recipe


def _unusable(entry: EntryPoint, reason: str) -> MlctlError:
    package = "an unnamed package" if entry.dist is None else entry.dist.name
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the recipe {printable(entry.name)!r} of {package} cannot be used: {printable(reason)}",
        f"Uninstall or mend {package}.",
    )
