"""Build, judge and time the variants of one run through the cache; a failure is a result.

Model and verdict are cached apart: another goal or metric needs no new model, unless the recipe
searches for that goal. Latencies are cached for all variants of a run together, so that only
times of one measurement are ever compared.
"""

from __future__ import annotations

import errno
import filecmp
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.clock import Clock
from mlctl.core.entries import Entry, Key, hash_key
from mlctl.core.errors import MlctlError
from mlctl.core.home import mlctl_home
from mlctl.core.os_errors import is_disk_full
from mlctl.core.quiet import first_line
from mlctl.core.text import printable
from mlctl.optimize.cache import fetch_or_build, is_cached, versions
from mlctl.optimize.events import ProgressListener, Stage, StepEvent, StepStatus
from mlctl.optimize.proofs.checks import check_graph
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.optimize.proofs.tensorrt_check import check_importable
from mlctl.optimize.recipes.base import (
    DATA_NAME,
    Details,
    NotApplicableError,
    Quality,
    Recipe,
    Target,
    Workbench,
)
from mlctl.optimize.recipes.graphs import invalid
from mlctl.optimize.variants.conditions import find_conditions
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.goals import Goals
from mlctl.optimize.variants.judge import QualityMeter, measure_variant, time_variants
from mlctl.optimize.variants.time_limit import (
    OutOfTimeError,
    Pace,
    Seconds,
    TimeLimit,
    by_promise,
    graph_pace,
)
from mlctl.optimize.variants.variant import (
    Measured,
    Timings,
    Variant,
    load_details,
    load_measured,
    load_timings,
    save_details,
    save_measured,
    save_timings,
)
from mlctl.services.model.int8_kernels import fast_kernels_are_exact

# To be raised when the same graph would be judged or timed differently.
MEASURE_VERSION = 7
LATENCY_VERSION = 2

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_FILES = frozenset({MODEL_NAME, DATA_NAME})


@dataclass(frozen=True)
class Attempt:
    """The inputs that all recipes of one run share.

    `crashed` has the recipes whose work has ended a process before, each with the reason.
    """

    exported: ExportedModel
    goals: Goals
    device: RunDevice
    progress: ProgressListener
    clock: Clock
    fresh: bool = False
    crashed: Mapping[str, str] = field(default_factory=dict)
    limit: TimeLimit | None = None

    def limited(self, seconds: float, end: float) -> Self:
        """Return the attempt with a limit of `seconds`, which ends at `end` on its clock."""
        return replace(self, limit=TimeLimit(seconds, end, self.clock, self.pace()))

    def make_variants(self, recipes: Sequence[Recipe]) -> list[Variant]:
        """Make the variant of each recipe; if time is limited, of those first that promise most.

        The first of all is never skipped, so that there is something to choose.
        """
        if self.limit is None:
            return [self.make_variant(recipe) for recipe in recipes]
        latency = self.latency_seconds(self.limit.pace).low
        found: dict[str, Variant] = {}
        for recipe in by_promise(recipes, self.device.target, self.goals.prefer):
            measured = [each for each in found.values() if each.measured is not None]
            left = math.inf
            if measured:
                left = self.limit.left() - (len(measured) + 1) * latency
            found[recipe.name] = self.make_variant(recipe, left)
        return [found[recipe.name] for recipe in recipes]

    def make_variant(self, recipe: Recipe, seconds: float = math.inf) -> Variant:
        """Build, check and judge `recipe`'s variant, or take it from the cache; it is not timed.

        An error of the recipe becomes the variant's `failure`; errors of the disk are raised. It is
        skipped if it would take longer than `seconds`, and ended when it does: nothing of it is
        cached then but the layers that were measured.
        """
        self._report(recipe, StepStatus.STARTED)
        try:
            self._require_no_crash(recipe)
            end = self._end(recipe, seconds)
            model = fetch_or_build(
                self.model_key(recipe), lambda directory: self._build(recipe, directory, end)
            )
            entry = self._measure(recipe, model)
        except Exception as error:
            if isinstance(error, OSError) or is_disk_full(error):
                raise
            applicable = not isinstance(error, NotApplicableError)
            failure = _without_paths(first_line(error))
            skipped = isinstance(error, OutOfTimeError)
            variant = Variant(
                *(recipe.name, recipe.precision, None),
                failure=failure,
                applicable=applicable,
                skipped=skipped,
            )
            status = StepStatus.FAILED if applicable else StepStatus.NOT_APPLICABLE
            status = StepStatus.SKIPPED if skipped else status
            self._report(recipe, status, variant)
            return variant
        variant = Variant(recipe.name, recipe.precision, load_measured(entry.root), model.root)
        self._report(recipe, StepStatus.CACHED if entry.reused else StepStatus.FINISHED, variant)
        return variant

    def with_latencies(self, variants: Sequence[Variant]) -> list[Variant]:
        """Time all variants that did not fail in one measurement, or take it from the cache.

        The latencies stay empty where the target is not on this machine.
        """
        if not self.device.timed or all(variant.measured is None for variant in variants):
            return list(variants)
        self.progress.event(StepEvent(Stage.LATENCY, StepStatus.STARTED))

        def build(directory: Path) -> None:
            save_timings(self._time(variants), directory)

        models = {
            variant.recipe: variant.model.name
            for variant in variants
            if variant.measured is not None and variant.model is not None
        }
        entry = fetch_or_build(self._latency_key(models), build, fresh=self.fresh)
        status, detail = StepStatus.FINISHED, ", ".join(models)
        if entry.reused:
            day = datetime.fromtimestamp(entry.root.stat().st_mtime, UTC).date()
            status, detail = StepStatus.CACHED, f"measured on {day}; --fresh measures again"
        self.progress.event(StepEvent(Stage.LATENCY, status, detail=detail))
        timings = load_timings(entry.root)
        return [_with_timing(variant, timings) for variant in variants]

    def model_key(self, recipe: Recipe) -> Key:
        """Return what the variant's graph depends on."""
        return {
            "kind": "model",
            "export": self.exported.key,
            "recipe": recipe.name,
            "version": recipe.version,
            "libraries": versions("onnx", "onnxruntime", "onnxruntime-gpu"),
            **(self._search_key() if recipe.tuned else {}),
        }

    def measure_key(self, recipe: Recipe) -> Key:
        """Return what the variant's numbers depend on, but for its latency."""
        device = self.device
        return {
            "kind": "measure",
            "version": MEASURE_VERSION,
            "model": hash_key(self.model_key(recipe)),
            "target": device.target.value,
            "provider": device.provider,
            **self._metric_key(),
            **self.exported.baseline.batching_options.key,
            **find_conditions().key,
            "gpu": device.gpu,
            "checker": versions("tensorrt-rtx-cu13") if device.target is Target.TENSORRT else "",
        }

    def latencies_cached(self, recipes: Iterable[Recipe]) -> bool:
        """Return whether the latencies of these recipes' variants, none failed, are cached."""
        models = {recipe.name: hash_key(self.model_key(recipe)) for recipe in recipes}
        return is_cached(self._latency_key(models))

    def _latency_key(self, models: Mapping[str, str]) -> Key:
        """Return what the latencies of `models`, hashes by recipe, depend on: the whole set."""
        device = self.device
        return {
            "kind": "latency",
            "version": LATENCY_VERSION,
            "models": " ".join(f"{recipe}={name}" for recipe, name in sorted(models.items())),
            "provider": device.provider,
            "gpu": device.gpu,
            "min_gain": self.goals.min_gain,
            **self.exported.baseline.batching_options.key,
            **find_conditions().key,
            "libraries": versions("onnxruntime", "onnxruntime-gpu"),
        }

    def _metric_key(self) -> Key:
        metric = self.exported.baseline.metric
        if metric is None:
            return {"metric": None}
        return {"metric": metric.name, "metric_code": metric.code}

    def _search_key(self) -> Key:
        batching_options = self.exported.baseline.batching_options
        return {
            **self._metric_key(),
            **batching_options.key,
            **self.goals.accuracy_only(),
            "fast_int8_exact": fast_kernels_are_exact(),
        }

    def seconds(self, recipe: Recipe, pace: Pace) -> Seconds:
        """Return how long `make_variant` takes by the source's `pace`, without what is cached."""
        baseline, found = self.exported.baseline, Seconds()
        if not is_cached(self.model_key(recipe)):
            found += pace.build(recipe, self.exported.calibration.count)
        if not is_cached(self.measure_key(recipe)):
            found += pace.judge(baseline.rows.count, baseline.batching.max_rows)
        return found

    def latency_seconds(self, pace: Pace) -> Seconds:
        """Return how long one variant is timed."""
        if not self.device.timed:
            return Seconds()
        return pace.latency(self.exported.baseline.batching.buckets)

    def pace(self) -> Pace:
        """Return the pace of the source model's graph."""
        return graph_pace(self.exported.graph, self.exported.calibration, self.clock)

    def _end(self, recipe: Recipe, seconds: float) -> float:
        """Return when `recipe` must end; OutOfTimeError if it would certainly take longer."""
        # What is cached takes no time, and so is never skipped.
        if self.limit is not None and self.seconds(recipe, self.limit.pace).low > max(0, seconds):
            raise OutOfTimeError(self.limit.reason)
        return self.clock.monotonic() + seconds

    def _require_time(self, end: float) -> None:
        if self.limit is not None and self.clock.monotonic() > end:
            raise OutOfTimeError(self.limit.reason)

    def _build(self, recipe: Recipe, directory: Path, end: float = math.inf) -> None:
        bench = self._bench(recipe, end)
        save_details(self._run(recipe, directory, bench), directory)

    def _run(self, recipe: Recipe, directory: Path, bench: Workbench) -> Details:
        return run_recipe(recipe, self.exported.graph, directory, bench)

    def _measure(self, recipe: Recipe, model: Entry) -> Entry:
        def build(directory: Path) -> None:
            save_measured(self._measured(model.root), directory)

        return fetch_or_build(self.measure_key(recipe), build)

    def _measured(self, root: Path) -> Measured:
        opset = check_graph(root / MODEL_NAME, self.exported.signature, None)
        importer = self._importer(root / MODEL_NAME)
        measured = measure_variant(
            root, opset, load_details(root), self.exported.baseline, self.device
        )
        return replace(measured, importer=importer)

    def _time(self, variants: Sequence[Variant]) -> Timings:
        return time_variants(
            variants,
            self.exported.baseline,
            self.device,
            self.clock,
            self.goals.min_gain,
            self._report_timing,
        )

    def _report_timing(self, recipe: str | None) -> None:
        """Report that `recipe`'s model is opened to be timed, or None: all are open."""
        self.progress.event(StepEvent(Stage.LATENCY, StepStatus.STARTED, recipe))

    def _importer(self, model: Path) -> str | None:
        """Return what TensorRT's importer says; ValueError if it rejects the graph."""
        if self.device.target is not Target.TENSORRT:
            return None
        verdict = check_importable(model, self.exported.baseline.batching)
        if verdict.ok is None:
            return verdict.reason
        if not verdict.ok:
            raise ValueError(f"TensorRT's importer rejects it: {verdict.reason}")
        return f"accepted by the importer of {verdict.importer_version}"

    @cached_property
    def _meter(self) -> QualityMeter:
        """What all recipes measure with: the source's answers to the rows are computed once."""
        baseline = self.exported.baseline
        return QualityMeter(
            self.exported.graph,
            self.exported.calibration,
            baseline.batching.max_rows,
            baseline.metric,
            self.goals,
            baseline.rows.count,
        )

    def _bench(self, recipe: Recipe, end: float) -> Workbench:
        def quality(directory: Path) -> Quality:
            self._require_time(end)
            return self._meter(directory)

        def store(key: Key, build: Callable[[Path], None]) -> Path:
            self._require_time(end)
            return self._store(key, build)

        return Workbench(self.exported.calibration, quality, store, self._step(recipe))

    def _store(self, key: Key, build: Callable[[Path], None]) -> Path:
        return fetch_or_build({**key, "export": self.exported.key}, build).root

    def _step(self, recipe: Recipe) -> Callable[[str, int, int], None]:
        def step(phase: str, done: int, total: int) -> None:
            event = StepEvent(Stage.VARIANT, StepStatus.WORKING, recipe.name, phase, done, total)
            self.progress.event(event)

        return step

    def _require_no_crash(self, recipe: Recipe) -> None:
        if recipe.name in self.crashed:
            raise ValueError(self.crashed[recipe.name])

    def _report(self, recipe: Recipe, status: StepStatus, variant: Variant | None = None) -> None:
        detail = "" if variant is None else variant.failure or ""
        event = StepEvent(Stage.VARIANT, status, recipe.name, detail)
        self.progress.event(event)


def _with_timing(variant: Variant, timings: Timings) -> Variant:
    if variant.measured is None:
        return variant
    failure = timings.failures.get(variant.recipe)
    if failure is not None:
        return replace(variant, measured=None, failure=_without_paths(failure))
    latency = timings.latencies[variant.recipe]
    return replace(variant, measured=replace(variant.measured, latency=latency))


def run_recipe(recipe: Recipe, source: Path, directory: Path, bench: Workbench) -> Details:
    """Build the variant and check its files; ValueError if the recipe or its files are wrong.

    OSError only for a full or broken disk.
    """
    details = build_files(recipe, source, directory, bench)
    _check_files(directory)
    _check_written(recipe, source, directory / MODEL_NAME)
    return details


def build_files(recipe: Recipe, source: Path, directory: Path, bench: Workbench) -> Details:
    """Run the recipe, which may be code of another package; raises as `run_recipe` does."""
    try:
        return recipe.build(source, directory, bench)
    except (MlctlError, ValueError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error


def _check_written(recipe: Recipe, source: Path, written: Path) -> None:
    """Reject an invalid graph, unless ONNX rejects the source's own graph, too; ValueError.

    A copy of that is not checked: it runs, and some graphs that run end ONNX's checker.
    """
    if filecmp.cmp(source, written, shallow=False):
        return
    fault = invalid(written)
    if fault is not None and invalid(source) is None:
        raise ValueError(
            f"the graph that {recipe.name} wrote is invalid: {fault}; leave the recipe out with "
            "--recipes, or export the model with another opset"
        )


def _check_files(directory: Path) -> None:
    """Reject files that no bundle holds; ValueError."""
    for path in sorted(directory.iterdir()):
        if path.name not in _FILES or path.is_symlink() or not path.is_file():
            raise ValueError(
                f"it left {printable(path.name)!r}; a variant is only {MODEL_NAME} and {DATA_NAME}"
            )
    if not (directory / MODEL_NAME).is_file():
        raise ValueError(f"it wrote no {MODEL_NAME}")


def _without_paths(reason: str) -> str:
    """Return an error's text without paths of this machine: it becomes evidence."""
    roots = "|".join(re.escape(str(root)) for root in (mlctl_home(), tempfile.gettempdir()))
    return re.sub(rf"(?:{roots})/(?:[^\s/:'\"]+/)*", "", reason)
