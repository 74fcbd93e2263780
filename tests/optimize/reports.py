"""Reports with numbers of a test's choice, judged by the real choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlctl.optimize.metrics.scores import load_metric
from mlctl.optimize.proofs.splits import SplitCheck
from mlctl.optimize.recipes.base import LayerCost, Target
from mlctl.optimize.result.evidence import DataSummary, OptimizeReport, SourceSummary
from mlctl.optimize.variants.choice import choose
from mlctl.optimize.variants.conditions import Conditions
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.goals import Goals
from mlctl.optimize.variants.variant import Variant


def make_report(
    variants: Sequence[Variant],
    goals: Goals | None = None,
    *,
    metric: str | None = "accuracy",
    target: Target = Target.CPU,
    missing: str | None = None,
    uri: str = "models:/digits/3",
    row_independent: bool = True,
    splits: SplitCheck | None = None,
    excluded: tuple[str, ...] = (),
) -> OptimizeReport:
    """Return what `mlctl.optimize.result.evidence.make_report` gives for these variants."""
    loaded = None if metric is None else load_metric(metric)
    source_score = None if metric is None else 0.9
    goals = (goals or Goals()).resolved(loaded, source_score)
    return OptimizeReport(
        source=SourceSummary(uri, "5f2c", "ab" * 32),
        data=DataSummary("cd" * 32, 1797, 256, 1000, labelled=metric is not None),
        transform=None,
        goals=goals,
        device=RunDevice(target, "cpu", missing),
        row_independent=row_independent,
        splits=splits,
        excluded=excluded,
        metric=loaded,
        source_score=source_score,
        judged=choose(variants, goals),
        conditions=Conditions("A Processor 9000", 8, 1, "onnx=1.23.2 torch=2.13.0", fast_int8=True),
    )


def layers(count: int, kept: int = 3) -> tuple[LayerCost, ...]:
    """Return layers of an encoder, the costliest first; the first `kept` stay in float."""
    return tuple(
        LayerCost(
            layer=f"/encoder/layer.{number // 6}/attention/output/dense/MatMul_{number}",
            operator="MatMul",
            distance=0.62 * 0.84**number,
            kept_in_float=number < kept,
        )
        for number in range(count)
    )


def with_layers(variant: Variant, costs: tuple[LayerCost, ...]) -> Variant:
    """Return the variant with these layers in its details."""
    assert variant.measured is not None
    details = replace(variant.measured.details, layers=costs)
    return replace(variant, measured=replace(variant.measured, details=details))
