"""The chain from a registered model to a published bundle.

Each finished export, variant and measurement is cached by content, so a repeated run resumes and
gives the same digest. A recipe that fails is recorded and does not stop the others; the chain
stops with an error as soon as a proof about the model fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import require_onnxruntime
from mlctl.optimize.events import ProgressListener, Silent, Stage, StepEvent, StepStatus
from mlctl.optimize.inputs.prepare import OptimizeOptions, Prepared
from mlctl.optimize.kinds import ModelKind, fitting_recipes, kind_of
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.optimize.proofs.splits import SplitCheck
from mlctl.optimize.recipes.base import Recipe
from mlctl.optimize.result.evidence import make_report, publish_report
from mlctl.optimize.result.report import report_html
from mlctl.optimize.result.seal import seal_bundle
from mlctl.optimize.variants.champion import judged_by_champion
from mlctl.optimize.variants.choice import Judged, choose
from mlctl.optimize.variants.conditions import Conditions
from mlctl.optimize.variants.device import find_device
from mlctl.optimize.variants.goals import (
    Goals,
    require_agreement,
    require_fitting_limit,
    require_labels_for,
)
from mlctl.registry.catalog import Catalog, PublishedModel, SourceModel


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """Every variant with its verdict, the sealed bundle, and the registered version.

    `report` is the self-contained page that was published with it; `excluded` are sentences, one
    for each kind of value that the published model rejects in a column; `constant` is one about
    outputs that do not vary over the judging rows.
    """

    source: SourceModel
    judged: tuple[Judged, ...]
    source_score: float | None
    splits: SplitCheck | None
    bundle: VerifiedBundle
    published: PublishedModel
    report: str
    conditions: Conditions
    excluded: tuple[str, ...]
    constant: str | None

    @property
    def chosen(self) -> Judged:
        return next(item for item in self.judged if item.chosen)

    @property
    def digest(self) -> str:
        return self.bundle.digest


class NothingPassedError(MlctlError):
    """No variant meets the goals; `judged` has the reasons."""

    def __init__(self, judged: tuple[Judged, ...], report: str) -> None:
        reasons = "; ".join(f"{item.variant.recipe}: {item.reason}" for item in judged)
        super().__init__(ErrorCode.NOTHING_PASSED, f"no variant meets the goals ({reasons})")
        self.judged = judged
        self.report = report


def optimize(
    uri: str,
    data: str | Path,
    *,
    catalog: Catalog,
    goals: Goals | None = None,
    options: OptimizeOptions | None = None,
    recipes: Sequence[Recipe] | None = None,
    progress: ProgressListener | None = None,
    clock: Clock | None = None,
    crashed: Mapping[str, str] | None = None,
) -> OptimizeResult:
    """Optimize the registered model `uri` on the rows in `data` and publish the best variant.

    Raises the errors of `prepare` and `export_source`, and `NothingPassedError` if no
    variant meets `goals`. Without `recipes`, all for the target and the kind of model are tried.
    Recipes in `crashed`, names with reasons, are rejected without being tried.
    """
    require_onnxruntime()
    goals, options = goals or Goals(), options or OptimizeOptions()
    progress, clock = progress or Silent(), clock or SystemClock()
    began = clock.monotonic()
    progress.event(StepEvent(Stage.RESOLVE, StepStatus.STARTED))
    source = catalog.resolve(uri, allow_pickle=options.allow_pickle)
    kind = kind_of(source)
    prepared = kind.prepare(source, data, options)
    progress.event(StepEvent(Stage.RESOLVE, StepStatus.FINISHED, detail=source.uri))
    recipes = fitting_recipes(recipes, source, options)
    require_labels_for(
        goals, labelled=prepared.metric is not None, champion=options.against_champion
    )
    require_fitting_limit(goals, prepared.metric)
    exported = _export(kind, prepared, progress)
    require_agreement(goals, exported.baseline.outputs)
    goals = goals.resolved(exported.baseline.metric, exported.baseline.score)
    if options.against_champion:
        goals = judged_by_champion(goals, catalog, prepared)
    device = find_device(options.target, exported.graph)
    attempt = kind.attempt(exported, goals, device, progress, clock, options.fresh, crashed or {})
    if options.max_seconds is not None:
        attempt = attempt.limited(options.max_seconds, began + options.max_seconds)
    variants = attempt.with_latencies(attempt.make_variants(recipes))
    judged = choose(variants, goals)
    report = make_report(exported, goals, device, judged)
    page = report_html(report)
    chosen = report.chosen
    if chosen is None:
        raise NothingPassedError(judged, page)
    detail = f"{chosen.variant.recipe}, {chosen.reason}"
    progress.event(StepEvent(Stage.CHOOSE, StepStatus.FINISHED, detail=detail))
    bundle = seal_bundle(exported, report, chosen)
    progress.event(StepEvent(Stage.PUBLISH, StepStatus.STARTED))
    source = exported.prepared.source
    published = catalog.publish(bundle, source, publish_report(report, chosen, page))
    progress.event(StepEvent(Stage.PUBLISH, StepStatus.FINISHED, detail=published.uri))
    return OptimizeResult(
        source,
        judged,
        exported.baseline.score,
        exported.splits,
        bundle,
        published,
        page,
        report.conditions,
        report.excluded,
        report.constant,
    )


def _export(kind: ModelKind, prepared: Prepared, progress: ProgressListener) -> ExportedModel:
    progress.event(StepEvent(Stage.EXPORT, StepStatus.STARTED))
    exported = kind.export(prepared)
    status = StepStatus.CACHED if exported.reused else StepStatus.FINISHED
    progress.event(StepEvent(Stage.EXPORT, status, detail=kind.describe(exported)))
    return exported
