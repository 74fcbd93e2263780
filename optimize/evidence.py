"""The record of an optimization: evidence.json, and the same numbers as the registry takes them.

It has no timestamp and no path, so that the same measurements give the same digest.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.manifest import Evidence
from optimize.cache import versions
from optimize.choose import Goals, Judged
from optimize.data import EvalData
from optimize.judge import Baseline
from optimize.variant import Measured
from registry.catalog import PublishReport, SourceModel

SCHEMA_VERSION = 1


def evidence_document(
    source: SourceModel,
    data: EvalData,
    baseline: Baseline,
    goals: Goals,
    judged: Sequence[Judged],
) -> dict[str, Any]:
    """The document that says what was tried, on what, and why one variant was chosen."""
    return {
        "schema_version": SCHEMA_VERSION,
        "source": {"uri": source.uri, "run_id": source.run_id, "sha256": source.sha256},
        "data": {
            "sha256": data.sha256,
            "calibration_rows": data.calibration.count,
            "held_out_rows": data.held_out.count,
            "judged_rows": baseline.rows.count,
            "labelled": baseline.rows.labels is not None,
        },
        "conditions": conditions(),
        "goals": asdict(goals),
        "row_independent": baseline.row_independent,
        "source_accuracy": baseline.accuracy(),
        "variants": [variant_record(item) for item in judged],
    }


def manifest_evidence(measured: Measured) -> Evidence:
    """The numbers of the chosen variant that the manifest carries."""
    return Evidence(
        rows=measured.rows,
        accuracy=measured.accuracy,
        accuracy_drop=measured.accuracy_drop,
        agreement=measured.parity.agreement,
        max_abs_error=measured.parity.max_abs_error,
        relative_l2=measured.parity.relative_l2,
    )


def publish_report(judged: Sequence[Judged], chosen: Judged, goals: Goals) -> PublishReport:
    """What the registry shows beside the bundle: metrics as `recipe/number`, and a table."""
    measured = [
        (item.variant.recipe, numbers(item.variant.measured))
        for item in judged
        if item.variant.measured is not None
    ]
    return PublishReport(
        verdict=chosen.reason,
        params={name: str(value) for name, value in asdict(goals).items()},
        metrics={
            f"{recipe}/{name}": value
            for recipe, values in measured
            for name, value in values.items()
        },
        table=[_row(item) for item in judged],
    )


def numbers(measured: Measured) -> dict[str, float]:
    """The numbers of a variant by name; those that do not apply are left out."""
    found: dict[str, float | None] = {
        "size_bytes": float(measured.size_bytes),
        "accuracy": measured.accuracy,
        "accuracy_drop": measured.accuracy_drop,
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
        "libraries": versions("onnx", "onnxruntime", "onnxruntime-gpu", "torch"),
    }


def variant_record(item: Judged) -> dict[str, Any]:
    """One variant as evidence.json and `mlctl optimize --json` tell it."""
    measured = item.variant.measured
    return {
        "recipe": item.variant.recipe,
        "precision": item.variant.precision,
        "passed": item.passed,
        "chosen": item.chosen,
        "reason": item.reason,
        "measured": None if measured is None else asdict(measured),
    }


def _row(item: Judged) -> dict[str, str | float | None]:
    measured = item.variant.measured
    verdict = "chosen" if item.chosen else "passed" if item.passed else "refused"
    values: dict[str, float] = {} if measured is None else numbers(measured)
    columns = ("accuracy", "accuracy_drop", "agreement", "size_bytes", "batch1_median_ms")
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
