"""Report documents with numbers of a test's choice, judged by the real choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from optimize.choice import choose
from optimize.evidence import variant_record
from optimize.goals import Goals
from optimize.recipes.base import LayerCost
from optimize.variant import Variant


def document(
    variants: Sequence[Variant],
    goals: Goals | None = None,
    *,
    metric: str | None = "accuracy",
    target: str = "cpu",
    provider: str = "cpu",
    missing: str | None = None,
    uri: str = "models:/digits/3",
    row_independent: bool = True,
) -> dict[str, Any]:
    """What `optimize.evidence.report_document` gives for these variants."""
    goals = goals or Goals()
    return {
        "schema_version": 2,
        "source": {"uri": uri, "run_id": "5f2c", "sha256": "ab" * 32},
        "data": {
            "sha256": "cd" * 32,
            "rows": 1797,
            "calibration_rows": 256,
            "held_out_rows": 1000,
            "labelled": metric is not None,
        },
        "transform": None,
        "libraries": "onnx=1.23.2 onnxruntime=1.31.1 torch=2.13.0",
        "goals": asdict(goals),
        "target": target,
        "row_independent": row_independent,
        "metric": metric,
        "source_score": None if metric is None else 0.9,
        "conditions": {
            "processor": "A Processor 9000",
            "cores": 8,
            "threads": 1,
            "libraries": "onnx=1.23.2 onnxruntime=1.31.1 torch=2.13.0",
        },
        "place": {"provider": provider, "missing": missing},
        "variants": [variant_record(item) for item in choose(variants, goals)],
    }


def layers(count: int, kept: int = 3) -> tuple[LayerCost, ...]:
    """Layers of an encoder, the costliest first, of which the first `kept` stay in float."""
    return tuple(
        LayerCost(
            layer=f"/encoder/layer.{number // 6}/attention/output/dense/MatMul_{number}",
            operator="MatMul",
            distance=0.62 * 0.84**number,
            kept_in_float=number < kept,
        )
        for number in range(count)
    )
