"""The records of an optimization: what was proved, and what was measured on top.

`evidence.json` travels in the bundle and so is part of its digest: it holds only what
the same inputs always give, no latency, timestamp or path. `report.json` adds the
latencies, where they were taken, and the decision in words; it is drawn as
report.html, and both are attached to the registry's run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.manifest import Evidence
from optimize.cache import versions
from optimize.choice import Judged
from optimize.device import RunDevice
from optimize.goals import Goals
from optimize.source_graph import Exported
from optimize.variant import Measured
from registry.catalog import PublishReport

SCHEMA_VERSION = 2
REPORT_NAME = "report.json"
PAGE_NAME = "report.html"

_LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-gpu", "torch")


def evidence_document(
    exported: Exported, goals: Goals, place: RunDevice, judged: Sequence[Judged]
) -> dict[str, Any]:
    """What was tried, on what, and what each variant was proved to be."""
    prepared, baseline = exported.prepared, exported.baseline
    source, transform = prepared.source, prepared.transform
    return {
        "schema_version": SCHEMA_VERSION,
        "source": {"uri": source.uri, "run_id": source.run_id, "sha256": source.sha256},
        "data": {
            "sha256": prepared.raw.sha256,
            "rows": prepared.raw.rows,
            "calibration_rows": prepared.calibration.count,
            "held_out_rows": prepared.held_out.count,
            "labelled": baseline.rows.labels is not None,
        },
        "transform": None if transform is None else transform.sha256,
        "libraries": versions(*_LIBRARIES),
        "goals": {
            **asdict(goals),
            "max_accuracy_drop": None if baseline.metric is None else goals.accuracy_drop,
        },
        "target": place.target.value,
        "row_independent": baseline.row_independent,
        "metric": None if baseline.metric is None else baseline.metric.name,
        "metric_code": None if baseline.metric is None else baseline.metric.code,
        "higher_is_better": None if baseline.metric is None else baseline.metric.higher_is_better,
        "source_score": baseline.score,
        "variants": [_proof(item) for item in judged],
    }


def report_document(
    exported: Exported, goals: Goals, place: RunDevice, judged: Sequence[Judged]
) -> dict[str, Any]:
    """The evidence with latencies, their conditions and the reasons: all that a page draws."""
    return {
        **evidence_document(exported, goals, place, judged),
        "conditions": conditions(),
        "place": {
            "provider": place.provider,
            "missing": place.missing,
            "device": place.device,
        },
        "variants": [variant_record(item) for item in judged],
    }


def manifest_evidence(measured: Measured, metric: str | None) -> Evidence:
    """The numbers of the chosen variant that the manifest carries."""
    score = measured.score
    return Evidence(
        rows=measured.rows,
        metric=None if score is None else metric,
        score=None if score is None else score.value,
        drop=None if score is None else score.drop.value,
        drop_high=None if score is None else score.drop.high,
        agreement=measured.parity.agreement,
        max_abs_error=measured.parity.max_abs_error,
        relative_l2=measured.parity.relative_l2,
    )


def publish_report(
    report: Mapping[str, Any], judged: Sequence[Judged], chosen: Judged, page: str
) -> PublishReport:
    """What the registry shows beside the bundle: metrics as `recipe/number`, a table, a page."""
    measured = [
        (item.variant.recipe, numbers(item.variant.measured))
        for item in judged
        if item.variant.measured is not None
    ]
    params = {**report["goals"], "target": report["target"], "metric": report["metric"]}
    return PublishReport(
        verdict=chosen.reason,
        params={name: str(value) for name, value in params.items()},
        metrics={
            f"{recipe}/{name}": value
            for recipe, values in measured
            for name, value in values.items()
        },
        table=[_row(item) for item in judged],
        files={
            REPORT_NAME: json.dumps(report, indent=2, sort_keys=True).encode(),
            PAGE_NAME: page.encode(),
        },
    )


def numbers(measured: Measured) -> dict[str, float]:
    """The numbers of a variant by name; those that do not apply are left out."""
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
    for batch in measured.latency:
        found[f"batch{batch.batch}_median_ms"] = batch.median_ms
        found[f"batch{batch.batch}_p95_ms"] = batch.p95_ms
    return {name: value for name, value in found.items() if value is not None}


def conditions() -> dict[str, str | int]:
    """Where the latencies were measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": 1,
        "libraries": versions(*_LIBRARIES),
    }


def variant_record(item: Judged) -> dict[str, Any]:
    """One variant as report.json and `mlctl optimize --json` have it."""
    measured = item.variant.measured
    return {
        "recipe": item.variant.recipe,
        "precision": item.variant.precision,
        "passed": item.passed,
        "chosen": item.chosen,
        "reason": item.reason,
        "measured": None if measured is None else asdict(measured),
    }


def _proof(item: Judged) -> dict[str, Any]:
    measured = item.variant.measured
    return {
        "recipe": item.variant.recipe,
        "precision": item.variant.precision,
        "accurate": item.accurate,
        "chosen": item.chosen,
        "failure": item.variant.failure,
        "proof": None if measured is None else measured.proof(),
    }


def _row(item: Judged) -> dict[str, str | float | None]:
    measured = item.variant.measured
    verdict = "chosen" if item.chosen else "passed" if item.passed else "refused"
    values: dict[str, float] = {} if measured is None else numbers(measured)
    columns = ("score", "drop", "drop_high", "agreement", "size_bytes", "batch1_median_ms")
    return {
        "recipe": item.variant.recipe,
        "verdict": verdict,
        **{name: values.get(name) for name in columns},
        "reason": item.reason,
    }


def _processor() -> str:
    """The processor's model name as Linux gives it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
