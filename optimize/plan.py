"""What an optimization would do: its rows, gates and steps, without doing any of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bundle.clock import SystemClock
from bundle.packages import require_onnxruntime
from optimize.attempt import Attempt
from optimize.cache import is_cached
from optimize.device import RunDevice, find_place
from optimize.events import Silent
from optimize.goals import Goals, require_labels_for
from optimize.prepare import Options, Prepared, prepare
from optimize.recipes.base import Recipe, Target
from optimize.recipes.discovery import discover
from optimize.source_graph import export_key, export_source
from registry.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `cached`: its result is there; `searches`: a missed gate starts a search."""

    name: str
    cached: bool
    searches: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What would run. `missing` says why the target is not on this machine, None if it is.

    `gates` are the limits in words. `excluded` maps the recipes that are not for the target
    to what they are for.
    """

    source: str
    data: str
    calibration_rows: int
    held_out_rows: int
    target: str
    missing: str | None
    gates: str
    steps: tuple[Step, ...]
    excluded: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The form that `--dry-run --json` prints."""
        return asdict(self)


def make_plan(
    uri: str,
    data: str | Path,
    *,
    catalog: Catalog,
    goals: Goals,
    options: Options,
    recipes: Sequence[Recipe],
) -> Plan:
    """Resolve the model, read the rows, look into the cache; raises what `prepare` raises."""
    require_onnxruntime()
    prepared = prepare(uri, data, catalog, options)
    require_labels_for(goals, labelled=prepared.metric is not None)
    place = _place(options.target)
    return Plan(
        source=prepared.source.uri,
        data=prepared.raw.sha256,
        calibration_rows=prepared.calibration.count,
        held_out_rows=prepared.held_out.count,
        target=options.target.value,
        missing=place.missing,
        gates=goals.words(None if prepared.metric is None else prepared.metric.name),
        steps=tuple(_steps(prepared, goals, place, options, recipes)),
        excluded=_excluded(options.target),
    )


def _steps(
    prepared: Prepared, goals: Goals, place: RunDevice, options: Options, recipes: Sequence[Recipe]
) -> Iterator[Step]:
    exported = is_cached(export_key(prepared))
    yield Step("export", exported)
    attempt = None
    if exported:
        source = export_source(prepared)
        attempt = Attempt(source, goals, place, options.calibrator, Silent(), SystemClock())
    for recipe in recipes:
        built = attempt is not None and is_cached(attempt.model_key(recipe))
        yield Step(f"{recipe.name}: build", built, recipe.tuned)
        measured = attempt is not None and is_cached(attempt.measure_key(recipe))
        yield Step(f"{recipe.name}: measure", measured)
    yield Step("publish", cached=False)


def _place(target: Target) -> RunDevice:
    """Whether the target is here, found out with the smallest graph there is."""
    if target is Target.CPU:
        return RunDevice(target, target.value)
    import onnx

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "probe.onnx")
        onnx.save(onnx.parser.parse_model(_PROBE), str(path))
        return find_place(target, path)


_PROBE = (
    '<ir_version: 8, opset_import: ["" : 17]> probe (float[n] x) => (float[n] y) { y = Abs(x) }'
)


def _excluded(target: Target) -> dict[str, str]:
    return {
        recipe.name: ", ".join(sorted(each.value for each in recipe.targets))
        for recipe in discover()
        if target not in recipe.targets
    }
