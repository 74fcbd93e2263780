"""What an optimization would do, and the time it is expected to take, without doing it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bundle.clock import SystemClock
from bundle.entries import Key, Record, hash_key
from optimize.attempt import Attempt
from optimize.cache import entry_path, is_cached, records
from optimize.estimate import Basis, Estimate, Kind, Past, Work, estimate
from optimize.events import Silent
from optimize.exported import export_key, export_source
from optimize.goals import Goals, require_labels_for
from optimize.judge import model_size
from optimize.place import Place, find_place
from optimize.prepare import Options, Prepared, prepare
from optimize.recipes.base import Recipe, Target
from optimize.recipes.discovery import discover
from registry.catalog import Catalog
from services.runtime.installed import require_onnxruntime

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `seconds` is 0 and `basis` None if its result is in the cache.

    `open_ended` says that it may take much longer: it searches until the goals hold.
    """

    name: str
    cached: bool
    seconds: float
    basis: Basis | None
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What would run. `missing` says why the target is not on this machine, None if it is.

    `excluded` maps the recipes that are not for the target to what they are for.
    """

    source: str
    data: str
    calibration_rows: int
    held_out_rows: int
    target: str
    missing: str | None
    steps: tuple[Step, ...]
    excluded: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """The expected time of all steps that are to do."""
        return sum(step.seconds for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """The form that `--plan --json` prints."""
        return {**asdict(self), "seconds": self.seconds}


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
    sampled = prepared.calibration.count, prepared.held_out.count
    return Plan(
        source=prepared.source.uri,
        data=prepared.raw.sha256,
        calibration_rows=sampled[0],
        held_out_rows=sampled[1],
        target=options.target.value,
        missing=place.missing,
        steps=tuple(_steps(prepared, goals, place, options, recipes)),
        excluded=_excluded(options.target),
    )


def _steps(
    prepared: Prepared, goals: Goals, place: Place, options: Options, recipes: Sequence[Recipe]
) -> Iterator[Step]:
    history = tuple(_history(list(records())))
    key = export_key(prepared)
    size = _megabytes(prepared.source.artifacts)
    calibration, held_out = prepared.calibration.count, prepared.held_out.count
    work = Work(Kind.EXPORT, hash_key(key), size, held_out)
    yield _step("export", work, history, cached=is_cached(key))
    attempt = None
    if is_cached(key):
        exported = export_source(prepared)
        attempt = Attempt(exported, goals, place, options.calibrator, Silent(), SystemClock())
    for recipe in recipes:
        for kind, rows in ((Kind.MODEL, calibration), (Kind.MEASURE, held_out)):
            work = Work(kind, hash_key(key), size, rows, recipe.name, recipe.precision)
            done = attempt is not None and is_cached(_key(attempt, recipe, kind))
            name = f"{recipe.name}: {'build' if kind is Kind.MODEL else 'measure'}"
            tuned = recipe.tuned and kind is Kind.MODEL
            yield _step(name, work, history, cached=done, open_ended=tuned)
    yield _step("publish", Work(Kind.PUBLISH, hash_key(key), size, 0), history, cached=False)


def _step(
    name: str,
    work: Work,
    history: Sequence[Past],
    *,
    cached: bool,
    open_ended: bool = False,
) -> Step:
    if cached:
        return Step(name, cached=True, seconds=0.0, basis=None)
    found: Estimate = estimate(work, history)
    # What this model took before includes the search, if there was one.
    unsure = open_ended and found.basis is not Basis.THIS_MODEL
    return Step(name, False, round(found.seconds, 1), found.basis, unsure)


def _key(attempt: Attempt, recipe: Recipe, kind: Kind) -> Key:
    return attempt.model_key(recipe) if kind is Kind.MODEL else attempt.measure_key(recipe)


def _history(entries: Sequence[Record]) -> Iterator[Past]:
    """The steps behind the entries; one whose model is no longer in the cache tells nothing."""
    by_hash = {hash_key(entry.key): entry for entry in entries}
    for entry in entries:
        kind = entry.key.get("kind")
        made = by_hash.get(str(entry.key.get("model"))) if kind == Kind.MEASURE else entry
        if made is None or kind not in set(Kind):
            continue
        name = hash_key(entry.key) if kind == Kind.EXPORT else str(made.key.get("export"))
        export = by_hash.get(name)
        if export is None:
            continue
        counted = "calibration_rows" if kind == Kind.MODEL else "held_out_rows"
        work = Work(
            kind=Kind(str(kind)),
            export=name,
            megabytes=model_size(entry_path(export.key)) / MEGABYTE,
            rows=int(export.key.get(counted) or 0),
            recipe=str(made.key.get("recipe", "")),
        )
        yield Past(work, entry.seconds)


def _place(target: Target) -> Place:
    """Whether the target is here, found out with the smallest graph there is."""
    if target is Target.CPU:
        return Place(target, target.value)
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


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MEGABYTE
