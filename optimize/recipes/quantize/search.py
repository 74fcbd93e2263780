"""Build a quantized variant: all layers if that is good enough, else with a search.

The search tries every layer alone on a few rows. Then it leaves as few of the costliest in float
as possible, at most half of them: a graph that is mostly float is no faster and hardly smaller,
so the search ends after one try if that is not enough. Costs are cached one by one, so a killed
search resumes, and no clock takes part, so the same graph always gives the same result.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.canonical import canonical_json
from mlctl.core.entries import Key
from mlctl.core.files import sha256_file, write_atomic
from mlctl.optimize.cache import versions
from mlctl.optimize.data import Rows
from mlctl.optimize.metrics.parity import compare, finite
from mlctl.optimize.recipes.base import DATA_NAME, Details, LayerCost, Quality, Workbench
from mlctl.optimize.recipes.quantize.methods import BATCH, WEIGHT_BITS, QuantizeMethod
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.session import open_session

VERSION = 3

# The cost of a layer that makes answers NaN or infinite: larger than any other.
BROKEN = 1e9

_FILE = "cost.json"

_Tried = tuple[QuantizeMethod, Quality]
WriteGraph = Callable[[Collection[str], Path], None]


def build(
    methods: Iterable[QuantizeMethod], source: Path, directory: Path, bench: Workbench
) -> Details:
    """Write the first of `methods` that is good with all layers quantized into `directory`.

    If none is, search with the one whose answers are nearest to those of the fp32 graph `source`.
    If no search can help, write it with all layers quantized: the gates then show what it costs.
    """
    tried = _try(methods, directory, bench)
    method, quality = tried[-1] if tried[-1][1].good else min(tried, key=_distance)
    costs: dict[str, float] = {}
    kept: tuple[str, ...] = ()
    missed = ""
    if not quality.good:
        costs = layer_costs(method, source, directory, bench)
        kept, missed = keep_worst(costs, method.write, directory, bench)
    method.write(kept, directory)
    operators = {layer.name: layer.operator for layer in method.layers}
    return Details(
        settings={
            **method.settings,
            "calibration rows": str(bench.calibration.count),
            "layers quantized": str(len(method.layers) - len(kept)),
            "layers left in float": str(len(kept)),
            **({"search": missed} if missed else {}),
        },
        layers=tuple(
            LayerCost(name, operators[name], cost, name in kept) for name, cost in costs.items()
        ),
        remark=_other_bits(tried, method),
    )


def _try(methods: Iterable[QuantizeMethod], directory: Path, bench: Workbench) -> list[_Tried]:
    """Return the methods whose graphs run with their quality, up to the first that is good."""
    found: list[_Tried] = []
    failure: RunError | None = None
    for method in methods:
        try:
            found.append((method, _quality(method.write, (), directory, bench)))
        except RunError as error:
            # Some forms have no kernel: weights of three dimensions with a scale per channel.
            failure = error
            continue
        if found[-1][1].good:
            break
    if failure is not None and not found:
        raise failure
    return found


def _other_bits(tried: Sequence[_Tried], taken: QuantizeMethod) -> str:
    """Say what weights of other bits than in `taken` gave; empty if none were tried."""
    bits = taken.settings.get(WEIGHT_BITS)
    others = [pair for pair in tried if pair[0].settings.get(WEIGHT_BITS) != bits]
    if not others:
        return ""
    method, quality = min(others, key=_distance)
    return (
        f"the weights have {bits} bits: with {method.settings[WEIGHT_BITS]} the calibration rows "
        f"gave {quality.words}"
    )


def _distance(tried: _Tried) -> float:
    return tried[1].distance


def layer_costs(
    method: QuantizeMethod, source: Path, directory: Path, bench: Workbench
) -> dict[str, float]:
    """Return the relative L2 that quantizing each layer alone costs, the costliest first."""
    rows = bench.calibration.head(BATCH)
    names = [layer.name for layer in method.layers]
    key: Key = {
        "kind": "layer cost",
        "version": VERSION,
        "graph": _graph_digest(source),
        "rows": _rows_digest(bench.calibration),
        "method": canonical_json(dict(method.settings)).decode(),
        "libraries": versions("numpy", "onnxruntime", "onnxruntime-gpu"),
    }
    reference = open_session(source).run(rows.inputs)

    def cost(name: str) -> float:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            method.write([each for each in names if each != name], Path(scratch))
            answers = open_session(Path(scratch, MODEL_NAME)).run(rows.inputs)
        return compare(reference, answers).relative_l2 if finite(answers) else BROKEN

    found = {}
    for done, name in enumerate(names, 1):

        def fill(folder: Path, done: int = done, name: str = name) -> None:
            write_atomic(folder / _FILE, canonical_json(cost(name)))
            bench.step("sensitivity", done, len(names))

        stored = bench.store({**key, "layer": name}, fill)
        found[name] = TypeAdapter(float).validate_json((stored / _FILE).read_bytes())
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def keep_worst(
    costs: Mapping[str, float], write: WriteGraph, directory: Path, bench: Workbench
) -> tuple[tuple[str, ...], str]:
    """Return the costliest layers that must stay in float for a good graph, and an empty text.

    `costs` has the costliest first; `write` writes the graph with the named layers in float
    into a folder inside `directory` that is then removed. If half of them are not enough, no
    layer is returned, and the text says what that try missed.
    """
    ranked = list(costs)
    missed = ""

    def good(kept: int) -> bool:
        nonlocal missed
        bench.step("layers left in float", kept, len(ranked))
        quality = _quality(write, ranked[:kept], directory, bench)
        missed = quality.words
        return quality.good

    max_kept = min(max(len(ranked) // 2, 1), len(ranked) - 1)
    kept = smallest_good(max_kept, good)
    if kept is None:
        reason = f"; with {max_kept} of {len(ranked)} layers in float: {missed}" if missed else ""
        return (), f"no mostly quantized graph meets the goals{reason}"
    return tuple(ranked[:kept]), ""


def smallest_good(max_kept: int, good: Callable[[int], bool]) -> int | None:
    """Return the smallest k from 1 to `max_kept` that was found good; None if `max_kept` is not.

    The order need not be monotonic: the result itself was tried.
    """
    if max_kept < 1 or not good(max_kept):
        return None
    low, high = 0, max_kept
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def _quality(
    write: WriteGraph, kept: Collection[str], directory: Path, bench: Workbench
) -> Quality:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        write(kept, Path(scratch))
        return bench.quality(Path(scratch))


def _graph_digest(source: Path) -> str:
    """Return a digest of the graph and its weights, wherever they are stored."""
    paths = (source, source.parent / DATA_NAME)
    return " ".join(sha256_file(path) for path in paths if path.is_file())


def _rows_digest(rows: Rows) -> str:
    """Return the hex sha256 of the inputs of `rows`."""
    digest = hashlib.sha256()
    for name, array in sorted(rows.inputs.items()):
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        digest.update(f"{name} {array.dtype} {array.shape} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
