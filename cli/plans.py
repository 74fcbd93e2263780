"""How a rollout's plan is shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlctl.rollout.domain.machine.planner import RolloutPlan


def plan_document(plan: RolloutPlan) -> dict[str, Any]:
    """A plan as --json shows it; null where today's traffic never suffices."""
    return {
        "requests_per_second": plan.today.per_second,
        "deadline_seconds": plan.deadline_seconds,
        "seconds": _finite(plan.seconds),
        "ends": plan.ends,
        "steps": [
            {name: _finite(value) for name, value in asdict(step).items()} for step in plan.steps
        ],
    }


def plan_rows(plan: RolloutPlan) -> Iterator[tuple[str, ...]]:
    """The rows of its table, the sum last."""
    for step in plan.steps:
        weight, requests = f"{step.weight} %", _number(step.requests, ".0f")
        yield step.phase.value, weight, requests, _number(step.seconds / 60, ".1f"), step.why
    rate = f"at {plan.today.per_second:.3g} requests/s"
    yield "all", "", "", _number(plan.seconds / 60, ".1f"), rate


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "never"


def _finite(value: Any) -> Any:
    return None if value == math.inf else value
