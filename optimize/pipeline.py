"""The chain from a registered model to a published bundle.

Each finished export and variant is cached by content, so a repeated run resumes and
gives the same digest. A recipe that fails is recorded and the others go on; the chain
stops with an error as soon as nothing true can be said about the model any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from optimize.attempt import make_variant
from optimize.choose import Goals, Judged, choose
from optimize.data import EvalData, load_data
from optimize.events import Event, Progress, Silent, Stage, Status
from optimize.evidence import publish_report
from optimize.exported import Exported, export_source
from optimize.recipes import RECIPES, Recipe
from optimize.seal import seal_bundle
from registry.catalog import Catalog, PublishedModel, SourceModel
from services.runtime import require_onnxruntime


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What came out: every variant with its verdict, the sealed bundle, the registered version."""

    source: SourceModel
    judged: tuple[Judged, ...]
    source_accuracy: float | None
    bundle: VerifiedBundle
    published: PublishedModel

    @property
    def chosen(self) -> Judged:
        return next(item for item in self.judged if item.chosen)

    @property
    def digest(self) -> str:
        return self.bundle.digest


class NothingPassedError(MlctlError):
    """No variant meets the goals; `judged` is the table that says why."""

    def __init__(self, judged: tuple[Judged, ...]) -> None:
        reasons = "; ".join(f"{item.variant.recipe}: {item.reason}" for item in judged)
        super().__init__(ErrorCode.NOTHING_PASSED, f"no variant meets the goals ({reasons})")
        self.judged = judged


def optimize(
    uri: str,
    data: Path,
    *,
    catalog: Catalog,
    goals: Goals | None = None,
    allow_pickle: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    recipes: tuple[Recipe, ...] = RECIPES,
) -> OptimizeResult:
    """Optimize the registered model `uri` on the rows in `data` and publish the best variant.

    Raises the errors of `Catalog.resolve`, `load_data` and `export_source`, and
    `NothingPassedError` if no variant meets `goals`.
    """
    require_onnxruntime()
    goals, progress, clock = goals or Goals(), progress or Silent(), clock or SystemClock()
    progress.event(Event(Stage.RESOLVE, Status.STARTED))
    source = catalog.resolve(uri, allow_pickle=allow_pickle)
    rows = load_data(data, source.signature)
    progress.event(Event(Stage.RESOLVE, Status.FINISHED, detail=source.uri))
    exported = _export(source, rows, progress, clock)
    variants = [make_variant(recipe, exported, progress, clock) for recipe in recipes]
    judged = choose(variants, goals)
    chosen = next((item for item in judged if item.chosen), None)
    if chosen is None:
        raise NothingPassedError(judged)
    detail = f"{chosen.variant.recipe}, {chosen.reason}"
    progress.event(Event(Stage.CHOOSE, Status.FINISHED, detail=detail))
    bundle = seal_bundle(exported, goals, judged, chosen)
    progress.event(Event(Stage.PUBLISH, Status.STARTED))
    published = catalog.publish(bundle, source, publish_report(judged, chosen, goals))
    progress.event(Event(Stage.PUBLISH, Status.FINISHED, detail=published.uri))
    return OptimizeResult(source, judged, exported.baseline.accuracy(), bundle, published)


def _export(source: SourceModel, rows: EvalData, progress: Progress, clock: Clock) -> Exported:
    progress.event(Event(Stage.EXPORT, Status.STARTED))
    exported = export_source(source, rows, clock)
    status = Status.CACHED if exported.reused else Status.FINISHED
    baseline = exported.baseline
    joined = "rows are independent" if baseline.row_independent else "rows influence each other"
    detail = f"opset {exported.opset}, {baseline.rows.count} rows, {joined}"
    progress.event(Event(Stage.EXPORT, status, detail=detail))
    return exported
