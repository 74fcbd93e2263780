"""Which layers cost most when quantized, and how few of them must stay in float.

Every layer is tried alone on a few rows; then the costliest are left in float, more and
more of them, until the whole graph is good. Costs are kept in the store one by one, so a
killed search goes on where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from bundle.entries import Key
from bundle.files import write_atomic
from bundle.manifest import canonical_json
from optimize.recipes.base import Workbench

_FILE = "cost.json"

Make = Callable[[Collection[str], Path], None]


def smallest_good(count: int, good: Callable[[int], bool]) -> int | None:
    """The least k from 1 to `count` - 1 that was found good; None if none was.

    k grows by about half until it is good, then the last gap is halved. Nothing is assumed
    of the order: the answer was tried.
    """
    low, high = 0, 1
    while high < count and not good(high):
        low, high = high, max(high + 1, min(high * 3 // 2, count - 1))
    if high >= count:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def layer_costs(
    names: Sequence[str], cost: Callable[[str], float], key: Key, bench: Workbench
) -> dict[str, float]:
    """The cost of quantizing each layer alone, the costliest first; each is kept in the store.

    `cost` is asked only for what is not there; `key` says what it depends on.
    """
    found = {}
    for done, name in enumerate(names, 1):

        def fill(directory: Path, name: str = name) -> None:
            write_atomic(directory / _FILE, canonical_json(cost(name)))

        stored = bench.store({**key, "kind": "layer cost", "layer": name}, fill)
        found[name] = TypeAdapter(float).validate_json((stored / _FILE).read_bytes())
        bench.step("sensitivity", done, len(names))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def keep_worst(
    costs: Mapping[str, float], make: Make, directory: Path, bench: Workbench
) -> tuple[tuple[str, ...], str]:
    """The costliest layers that must stay in float for the graph to be good, and no words.

    `costs` has the costliest first; `make` writes the graph with the named layers in float
    into a directory, here one inside `directory` that is gone afterwards. If even a single
    quantized layer is too much, no layer is named, and the words say what the last try
    missed: whoever judges then shows what quantizing all of them costs.
    """
    ranked = list(costs)
    words = ""

    def good(kept: int) -> bool:
        nonlocal words
        bench.step("layers left in float", kept, len(ranked))
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            make(ranked[:kept], Path(scratch))
            quality = bench.quality(Path(scratch))
        words = f": {quality.words}"
        return quality.good

    kept = smallest_good(len(ranked), good)
    if kept is None:
        return (), f"no layer can be quantized within the goals{words}"
    return tuple(ranked[:kept]), ""
