"""The plan of an optimization: its rows, gates and steps, without running them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlctl.core.clock import SystemClock
from mlctl.core.packages import require_onnxruntime
from mlctl.optimize.cache import is_cached
from mlctl.optimize.events import Silent
from mlctl.optimize.inputs.prepare import OptimizeOptions, Prepared
from mlctl.optimize.kinds import fitting_recipes, kind_of
from mlctl.optimize.proofs.source_graph import export_key
from mlctl.optimize.recipes.base import Recipe, Target
from mlctl.optimize.recipes.discovery import discover, fits
from mlctl.optimize.variants.attempt import Attempt
from mlctl.optimize.variants.device import RunDevice, find_device
from mlctl.optimize.variants.goals import Goals, require_fitting_limit, require_labels_for
from mlctl.optimize.variants.time_limit import Pace, Seconds
from mlctl.registry.catalog import Catalog, SourceModel


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `cached`: its result exists; `searches`: a missed gate starts a search."""

    name: str
    cached: bool
    searches: bool = False


@dataclass(frozen=True, slots=True)
class OptimizePlan:
    """The steps that would run. `missing` says why the target is not on this machine.

    `gates` are the limits in words. `excluded` maps the recipes that do not support the target
    to the targets that they support. `seconds` is how long the steps take that are not cached, but
    for the export and what is only known after it (searches); None for a language model. `pace` is
    what it was counted with.
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
    pace: Pace | None = None
    seconds: Seconds | None = None

    @property
    def time(self) -> str | None:
        """How long it takes, in words."""
        if self.seconds is None or self.pace is None:
            return None
        row = f"{1000 * (self.pace.call + self.pace.row):.3g} ms for a row of the source model"
        exported = self.steps[0].cached
        more = "" if exported else ", and the export and searches that follow from it"
        return f"{self.seconds.words}{more}, by {row}"

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `--dry-run --json` prints."""
        return asdict(self)


def make_plan(
    uri: str,
    data: str | Path,
    *,
    catalog: Catalog,
    goals: Goals,
    options: OptimizeOptions,
    recipes: Sequence[Recipe] | None,
) -> OptimizePlan:
    """Resolve the model, read the rows and check the cache; raises the errors of `prepare`."""
    require_onnxruntime()
    source = catalog.resolve(uri, allow_pickle=options.allow_pickle)
    prepared = kind_of(source).prepare(source, data, options)
    recipes = fitting_recipes(recipes, source, options)
    labelled = prepared.metric is not None
    require_labels_for(goals, labelled=labelled, champion=options.against_champion)
    require_fitting_limit(goals, prepared.metric)
    device = _device(options.target)
    attempt = _attempt(prepared, goals, device, options)
    steps = tuple(_steps(attempt, device, recipes))
    pace, seconds = _time(prepared, attempt, device, recipes)
    return OptimizePlan(
        source=prepared.source.uri,
        data=prepared.raw.sha256,
        calibration_rows=prepared.calibration.count,
        held_out_rows=prepared.held_out.count,
        target=options.target.value,
        missing=device.missing,
        gates=goals.words(prepared.metric),
        steps=steps,
        excluded=_excluded(prepared.source, options.target),
        pace=pace,
        seconds=seconds,
    )


def _attempt(
    prepared: Prepared, goals: Goals, device: RunDevice, options: OptimizeOptions
) -> Attempt | None:
    """Return what would make the variants; None before the export."""
    if not is_cached(export_key(prepared)):
        return None
    kind = kind_of(prepared.source)
    exported = kind.export(prepared)
    goals = goals.resolved(exported.baseline.metric, exported.baseline.score)
    return kind.attempt(exported, goals, device, Silent(), SystemClock(), options.fresh)


def _steps(attempt: Attempt | None, device: RunDevice, recipes: Sequence[Recipe]) -> Iterator[Step]:
    yield Step("export", attempt is not None)
    for recipe in recipes:
        built = attempt is not None and is_cached(attempt.model_key(recipe))
        yield Step(f"{recipe.name}: build", built, recipe.tuned)
        measured = attempt is not None and is_cached(attempt.measure_key(recipe))
        yield Step(f"{recipe.name}: judge", measured)
    if device.timed:
        yield Step("latency", attempt is not None and attempt.latencies_cached(recipes))
    yield Step("publish", cached=False)


def _time(
    prepared: Prepared, attempt: Attempt | None, device: RunDevice, recipes: Sequence[Recipe]
) -> tuple[Pace | None, Seconds | None]:
    """Run the graph, or before the export the source model, and count the passes to do."""
    source_pace = kind_of(prepared.source).source_pace
    if source_pace is None:
        return None, None
    found = Seconds()
    if attempt is not None:
        pace = attempt.pace()
        for recipe in recipes:
            found += attempt.seconds(recipe, pace)
        if not attempt.latencies_cached(recipes):
            found += attempt.latency_seconds(pace).times(len(recipes))
        return pace, found
    pace = source_pace(prepared, SystemClock())
    # A call of the graph may take as long as one of the source's library, or no time at all.
    low, high = (
        _uncached(each, prepared, device, recipes) for each in (replace(pace, call=0.0), pace)
    )
    return pace, Seconds(low.low, high.high)


def _uncached(
    pace: Pace, prepared: Prepared, device: RunDevice, recipes: Sequence[Recipe]
) -> Seconds:
    batching, found = prepared.batching_options.batching(row_independent=True), Seconds()
    for recipe in recipes:
        found += pace.build(recipe, prepared.calibration.count)
        found += pace.judge(prepared.held_out.count, batching.max_rows)
        if device.timed:
            found += pace.latency(batching.buckets)
    return found


def _device(target: Target) -> RunDevice:
    """Return the device for `target`, probed with the smallest possible graph."""
    if target is Target.CPU:
        return RunDevice(target, target.value)
    import onnx

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "probe.onnx")
        onnx.save(onnx.parser.parse_model(_PROBE), str(path))
        return find_device(target, path)


_PROBE = (
    '<ir_version: 8, opset_import: ["" : 17]> probe (float[n] x) => (float[n] y) { y = Abs(x) }'
)


def _excluded(source: SourceModel, target: Target) -> dict[str, str]:
    return {
        recipe.name: ", ".join(sorted(each.value for each in recipe.targets))
        for recipe in discover()
        if target not in recipe.targets and fits(recipe, generates=source.generates)
    }
