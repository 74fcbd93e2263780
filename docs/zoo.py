"""The tables of docs/models.md that say which models are accepted, from the zoo's verdicts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent.parent / "tests" / "outside" / "results.csv"
# Where a model of scikit-learn stands; one that is accepted at each place is named without it.
_PLACES = (" alone", " in a pipeline", " and a linear model", " and Ridge")


class _Line(NamedTuple):
    group: str
    model: str
    verdict: str
    reason: str


def zoo_tables() -> str:
    """Return what is accepted by group, and each rejected model with its sentence."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        lines = [_Line(*row) for row in csv.reader(file)][1:]
    groups = dict.fromkeys(line.group for line in lines)
    accepted = []
    for group in groups:
        own = [line for line in lines if line.group == group]
        count = sum(line.verdict == "accepted" for line in own)
        accepted.append((group, f"{count} of {len(own)}", ", ".join(_names(own, "accepted"))))
    parts = [_table(("Kind", "Accepted", "Models"), accepted)]
    rows: dict[str, list[_Line]] = {}
    for line in lines:
        if line.verdict == "rejected":
            # The name is the first word of some sentences, which are alike but for it.
            rows.setdefault(line.reason.replace(_split(line.model)[0], "NAME"), []).append(line)
    cells = [
        (
            ", ".join(_names(found, "rejected")),
            _escaped(found[0].reason if len(found) == 1 else reason),
        )
        for reason, found in rows.items()
    ]
    parts += ["Rejected, with these sentences:", _table(("Models", "Sentence"), cells)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _names(lines: Sequence[_Line], verdict: str) -> list[str]:
    """Return the names with that verdict; the places are left out where all have it."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.verdict == verdict:
            name, place = _split(line.model)
            found.setdefault(name, []).append(place)
    all_places = {name: sum(_split(line.model)[0] == name for line in lines) for name in found}
    return [
        name
        if len(places) == all_places[name] or not places[0]
        else f"{name} ({places[0].strip()})"
        for name, places in found.items()
    ]


def _split(model: str) -> tuple[str, str]:
    place = next((each for each in _PLACES if model.endswith(each)), "")
    return model.removesuffix(place), place


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
