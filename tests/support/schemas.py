"""The published schemas under tests/deploy/schemas, and whether a document keeps to them."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_FOLDER = Path(__file__).parents[1] / "deploy/schemas"
_WITH_KINDS = ("kubernetes", "gateway-api", "keda", "prometheus-operator", "kserve")
# No schema accepts it anywhere: neither as a field, nor as the value of a label or quantity.
NONSENSE: Any = [[None]]


def faults(document: Json) -> list[str]:
    """Where and how a Kubernetes object departs from the schema of its kind."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in kinds():
        return [f"$.kind: {kind!r} is none that is known"]
    return _faults(_validator(kind), document)


def compose_faults(document: Json) -> list[str]:
    """Where and how a Compose file departs from its specification."""
    return _faults(_compose(), document)


def kinds() -> set[str]:
    """The kinds whose schemas are here."""
    return set(_kinds())


def mutants(document: Json) -> Iterator[tuple[str, Json]]:
    """The document with one thing wrong each: a field nobody knows, or a value of no type."""
    for path, value in _walk(document):
        where = ".".join(map(str, path)) or "(root)"
        if isinstance(value, dict):
            yield f"{where}: an unknown field", _changed(document, (*path, "unknownField"))
        elif not isinstance(value, list):
            yield f"{where}: another type", _changed(document, path)


def _walk(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield from _walk(each, (*path, key))


def _changed(document: Json, path: tuple[Any, ...]) -> Json:
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = NONSENSE
    return changed


def _faults(validator: Any, document: Json) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@functools.cache
def _read(name: str) -> Json:
    found: Json = json.loads((_FOLDER / f"{name}.json").read_text())
    return found


@functools.cache
def _kinds() -> dict[str, tuple[str, str]]:
    return {
        kind: (name, definition)
        for name in _WITH_KINDS
        for kind, definition in _read(name)["kinds"].items()
    }


@functools.cache
def _validator(kind: str) -> Any:
    name, definition = _kinds()[kind]
    known = {**_read("kubernetes")["$defs"], **_read(name)["$defs"]}
    return _draft_2020_12()({"$ref": f"#/$defs/{definition}", "$defs": known})


@functools.cache
def _compose() -> Any:
    return _draft_2020_12()(_read("compose"))


def _draft_2020_12() -> Any:
    # Its import compiles grammars for a second, which not every process of a run should do.
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    return Draft202012Validator
