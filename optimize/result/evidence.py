"""The records of an optimization: proofs, and measurements on top.

`evidence.json` travels in the bundle and so is part of its digest: it holds only what
the same inputs always give, no latency, time or path. `report.json` adds latencies, the conditions
they were measured in, and the decision in words; `report.html` draws it. Both are attached to
the registry's run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlctl.bundle.manifest import Evidence
from mlctl.optimize.cache import versions
from mlctl.optimize.metrics.perplexity import PERPLEXITY
from mlctl.optimize.metrics.scores import Metric
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.optimize.proofs.splits import SplitCheck
from mlctl.optimize.variants.choice import Judged
from mlctl.optimize.variants.conditions import LIBRARIES, Conditions, find_conditions
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.goals import Goals
from mlctl.optimize.variants.variant import Measured
from mlctl.registry.catalog import PublishReport

SCHEMA_VERSION = 4
REPORT_NAME = "report.json"
PAGE_NAME = "report.html"

_GENERATION_LIBRARIES = ("onnxruntime-genai", "transformers")


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """The registered model."""

    uri: str
    run_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DataSummary:
    """The evaluation data: `rows` in all; some calibrate, others (held out) judge."""

    sha256: str
    rows: int
    calibration_rows: int
    held_out_rows: int
    labelled: bool


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """The outcome of an optimization; `transform` is the digest of the user's code."""

    source: SourceSummary
    data: DataSummary
    transform: str | None
    goals: Goals
    device: RunDevice
    row_independent: bool
    splits: SplitCheck | None
    excluded: tuple[str, ...]
    metric: Metric | None
    source_score: float | None
    judged: tuple[Judged, ...]
    conditions: Conditions

    @property
    def generates(self) -> bool:
        """Whether it is about a language model."""
        return self.metric is PERPLEXITY

    @property
    def chosen(self) -> Judged | None:
        return next((item for item in self.judged if item.chosen), None)

    @property
    def constant(self) -> str | None:
        """A sentence about the outputs that do not vary over the judging rows; None without any."""
        parities = [found.parity for _, found in self.measured]
        if self.generates or not parities or not parities[0].constant:
            return None
        names, rows = parities[0].constant, f"{self.data.held_out_rows:,}"
        listed = ", ".join(map(repr, names))
        if len(names) == len(parities[0].outputs):
            return (
                f"The source model's answers do not vary over the judging rows ({rows}), so no "
                "lossy variant can be proved: give rows of real data with --data."
            )
        return (
            f"Constant over the judging rows ({rows}): {listed}. There only the distance to the "
            "source model's answer was judged, not how answers vary."
        )

    @property
    def measured(self) -> tuple[tuple[Judged, Measured], ...]:
        """The variants that did not fail, each with its numbers."""
        pairs = ((item, item.variant.measured) for item in self.judged)
        return tuple((item, found) for item, found in pairs if found is not None)

    @property
    def timed(self) -> bool:
        """Whether every variant that did not fail has latencies."""
        return bool(self.measured) and all(found.latency for _, found in self.measured)


def make_report(
    exported: ExportedModel, goals: Goals, device: RunDevice, judged: Sequence[Judged]
) -> OptimizeReport:
    """Return the outcome with the inputs and conditions it depends on."""
    prepared, baseline = exported.prepared, exported.baseline
    source, transform = prepared.source, prepared.transform
    conditions = find_conditions()
    if source.generates:
        libraries = versions(*LIBRARIES, *_GENERATION_LIBRARIES)
        conditions = replace(conditions, libraries=libraries)
    return OptimizeReport(
        source=SourceSummary(source.uri, source.run_id, source.sha256),
        data=DataSummary(
            sha256=prepared.raw.sha256,
            rows=prepared.raw.rows,
            calibration_rows=prepared.calibration.count,
            held_out_rows=prepared.held_out.count,
            labelled=baseline.rows.labels is not None,
        ),
        transform=None if transform is None else transform.sha256,
        goals=goals,
        device=device,
        row_independent=baseline.row_independent,
        splits=exported.splits,
        excluded=exported.probes.reasons,
        metric=baseline.metric,
        source_score=baseline.score,
        judged=tuple(judged),
        conditions=conditions,
    )


def evidence_document(report: OptimizeReport) -> dict[str, Any]:
    """Return `evidence.json`: inputs, goals, and the proof of each variant."""
    metric = report.metric
    return {
        "schema_version": SCHEMA_VERSION,
        "source": asdict(report.source),
        "data": asdict(report.data),
        "transform": report.transform,
        "libraries": report.conditions.libraries,
        "goals": {
            **asdict(report.goals),
            "max_accuracy_drop": None if metric is None else report.goals.accuracy_drop,
        },
        "target": report.device.target.value,
        "row_independent": report.row_independent,
        "splits": None if report.splits is None else report.splits.model_dump(),
        "excluded": list(report.excluded),
        "metric": None if metric is None else metric.name,
        "metric_code": None if metric is None else metric.code,
        "higher_is_better": None if metric is None else metric.higher_is_better,
        "source_score": report.source_score,
        "variants": [_proof(item) for item in report.judged],
    }


def report_document(report: OptimizeReport) -> dict[str, Any]:
    """Return `report.json`: the evidence with latencies, their conditions and the reasons."""
    device = report.device
    return {
        **evidence_document(report),
        "conditions": asdict(report.conditions),
        "device": {"provider": device.provider, "missing": device.missing, "gpu": device.gpu},
        "variants": [variant_record(item) for item in report.judged],
    }


def manifest_evidence(measured: Measured, metric: Metric | None) -> Evidence:
    """Return the numbers of the chosen variant that the manifest carries."""
    score = measured.score
    return Evidence(
        rows=measured.rows,
        metric=None if score is None or metric is None else metric.name,
        score=None if score is None else score.value,
        drop=None if score is None else score.drop.value,
        drop_high=None if score is None else score.drop.high,
        agreement=measured.parity.agreement,
        max_abs_error=measured.parity.max_abs_error,
        relative_l2=measured.parity.relative_l2,
    )


def publish_report(report: OptimizeReport, chosen: Judged, page: str) -> PublishReport:
    """Return what the registry shows: metrics named `recipe/number`, and the report."""
    document = report_document(report)
    params = {**document["goals"], "target": document["target"], "metric": document["metric"]}
    return PublishReport(
        verdict=chosen.reason,
        params={name: str(value) for name, value in params.items()},
        metrics={
            f"{item.variant.recipe}/{name}": value
            for item, measured in report.measured
            for name, value in _numbers(measured).items()
        },
        files={
            REPORT_NAME: json.dumps(document, indent=2, sort_keys=True).encode(),
            PAGE_NAME: page.encode(),
        },
    )


def variant_record(item: Judged) -> dict[str, Any]:
    """Return one variant as report.json and `mlctl optimize --json` have it."""
    measured = item.variant.measured
    return {
        "recipe": item.variant.recipe,
        "precision": item.variant.precision,
        "verdict": item.verdict.value,
        "passed": item.passed,
        "chosen": item.chosen,
        "reason": item.reason,
        "measured": None if measured is None else measured.record(),
    }


def _proof(item: Judged) -> dict[str, Any]:
    measured = item.variant.measured
    return {
        "recipe": item.variant.recipe,
        "precision": item.variant.precision,
        "accurate": item.accurate,
        "chosen": item.chosen,
        "applicable": item.variant.applicable,
        "skipped": item.variant.skipped,
        "failure": item.variant.failure,
        "proof": None if measured is None else measured.proof(),
    }


def _numbers(measured: Measured) -> dict[str, float]:
    """Return the numbers of a variant by name, without those that do not apply."""
    score = measured.score
    found: dict[str, float | None] = {
        "size_bytes": float(measured.size_bytes),
        "score": None if score is None else score.value,
        "drop": None if score is None else score.drop.value,
        "drop_high": None if score is None else score.drop.high,
        "agreement": measured.parity.agreement,
        "max_abs_error": measured.parity.max_abs_error,
        "relative_l2": measured.parity.relative_l2,
        "centred_cosine": measured.parity.centred_cosine,
    }
    if measured.generates:
        found["first_token_ms"] = measured.first_token_ms
        found["tokens_per_second"] = measured.tokens_per_second
        return {name: value for name, value in found.items() if value is not None}
    for batch in measured.latency:
        found[f"batch{batch.batch}_median_ms"] = batch.median_ms
        found[f"batch{batch.batch}_p95_ms"] = batch.p95_ms
    return {name: value for name, value in found.items() if value is not None}
