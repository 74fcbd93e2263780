"""The packages and the order of their layers, as docstrings and import contracts say."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_SEPARATORS = ("|", ":")


def rooms_table() -> str:
    """Each package, those at the top from the upper layer to the lowest, with what it does."""
    rows = ["| Folder | What it does |", "|---|---|"]
    for package in [name for layer in _contracts()[""] for name in _names(layer)]:
        for folder in _packages(_ROOT / package):
            depth = len(folder.relative_to(_ROOT).parts) - 1
            name = f"`{folder.relative_to(_ROOT).as_posix()}/`"
            shown = f"**{name}**" if depth == 0 else f"{'&emsp;' * depth}{name}"
            rows.append(f"| {shown} | {_first_sentence(folder / '__init__.py')} |")
    return "\n".join(rows) + "\n"


def layers_text() -> str:
    """The contracts that `make check` enforces: who may import whom, from the top down."""
    parts = []
    for container, layers in _contracts().items():
        name = f"in {container.replace('.', '/')}/:" if container else "at the top:"
        parts.append("\n".join([name, *(f"    {' '.join(_split(each))}" for each in layers)]))
    return "```text\n" + "\n\n".join(parts) + "\n```\n"


def _contracts() -> Mapping[str, Sequence[str]]:
    """Return the layers of each container, which is "" for mlctl itself."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    contracts: Sequence[Mapping[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return {
        container.removeprefix("mlctl").removeprefix("."): each["layers"]
        for each in contracts
        if each["type"] == "layers"
        for container in each["containers"]
    }


def _split(layer: str) -> list[str]:
    return [word for word in layer.split() if word not in _SEPARATORS]


def _names(layer: str) -> list[str]:
    """Return the packages of a layer at the top; some are modules of `mlctl/` itself."""
    return [name for name in _split(layer) if (_ROOT / name).is_dir()]


def _packages(folder: Path, levels: int = 2) -> Iterator[Path]:
    """Yield `folder` and the packages in it, up to `levels` deep; examples are told by one line."""
    yield folder
    if levels and folder.name != "examples":
        for inner in sorted(folder.glob("*/__init__.py")):
            yield from _packages(inner.parent, levels - 1)


def _first_sentence(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")
