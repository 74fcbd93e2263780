"""Finding recipes: mlctl's own, and those that installed packages bring.

A package adds a recipe with an entry point in the group `mlctl.recipes`: the recipe's
name, and the class or object that is the recipe. mlctl's own are listed here and not as
entry points, which an installation made before a recipe was written would lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_args

from bundle.errors import ErrorCode, MlctlError
from optimize.recipes.base import Details, Precision, Recipe, Target, Workbench
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

_OWNER = "mlctl"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands for a plug-in that cannot be used, so that its variant tells the `reason`."""

    name: str
    reason: str
    precision: Precision = "fp32"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 0
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:  # noqa: ARG002
        raise ValueError(self.reason)


def discover() -> tuple[Recipe, ...]:
    """mlctl's recipes, fp32 first, then those of installed packages by name.

    INVALID_INPUT names the packages if two bring the same name. A plug-in that cannot be
    imported, or is no recipe, is `Unusable`.
    """
    owners = {recipe.name: _OWNER for recipe in OWN}
    found = list(OWN)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, _owner(entry))):
        if entry.name in owners:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the recipe {printable(entry.name)!r} is brought by two packages: "
                f"{owners[entry.name]} and {_owner(entry)}",
                "Uninstall one of them, or give its recipe another name.",
            )
        owners[entry.name] = _owner(entry)
        found.append(_load(entry))
    return tuple(found)


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


def _owner(entry: EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else entry.dist.name


def _load(entry: EntryPoint) -> Recipe:
    try:
        with quiet():
            loaded: Any = entry.load()
            recipe = loaded() if isinstance(loaded, type) else loaded
        fault = _fault(recipe, entry.name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's module may raise it
        fault = f"{type(error).__name__}: {first_line(error)}"
    if fault is None:
        usable: Recipe = recipe
        return usable
    return Unusable(entry.name, f"the plug-in of {_owner(entry)} cannot be used: {fault}")


def _fault(recipe: Any, name: str) -> str | None:
    """What makes the object no recipe called `name`; None if it is one."""
    if not _NAME.fullmatch(name):
        return "its name has other characters than a to z, 0 to 9 and -"
    if recipe.name != name:
        return f"its entry point is called {name!r}, the recipe {recipe.name!r}"
    if recipe.precision not in get_args(Precision):
        return f"its precision {recipe.precision!r} is none of {', '.join(get_args(Precision))}"
    targets = recipe.targets
    if not isinstance(targets, frozenset) or not targets or not targets <= frozenset(Target):
        return "its targets are no frozenset of optimize.recipes.base.Target"
    if not isinstance(recipe.version, int) or not isinstance(recipe.tuned, bool):
        return "its version must be an int and its tuned a bool"
    return None if callable(recipe.build) else "its build cannot be called"
