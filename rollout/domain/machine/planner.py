"""What a rollout would need at today's traffic: requests and time for each of its steps. Pure.

The candidate is taken to be as good as the live revision was while it was measured. A proof
then grows by the same amount with each request, so the number that it needs is the point where
the expected evidence crosses its threshold. It is an estimate: half of all rollouts need more.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.gate_table import LATE_SHARE, SLOW_SHARE
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.drift import rows_needed
from mlctl.rollout.domain.traffic.counts import Totals

_MAX_REQUESTS = 1 << 40
_NOISE = 2.0  # standard errors


@dataclass(frozen=True, slots=True)
class Today:
    """The traffic as it was measured: requests per second, and which shares were bad.

    `late` and `slow` are the shares beyond the spec's limits of p50 and p99.
    """

    per_second: float
    errors: float = 0.0
    late: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: the candidate's requests that it waits for, and its time in seconds.

    Both are infinite for a step that today's traffic never ends. `why` names what decides.
    """

    phase: RolloutPhase
    weight: int
    requests: float
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """All steps of a rollout, in order."""

    today: Today
    steps: tuple[PlannedStep, ...]
    deadline_seconds: float

    @property
    def seconds(self) -> float:
        """From the first step to the end of the bake; starting the candidate comes on top."""
        return sum(step.seconds for step in self.steps)

    @property
    def ends(self) -> bool:
        """Whether it can be expected to end before its deadline."""
        return self.seconds <= self.deadline_seconds

    def require_end(self) -> None:
        """INSUFFICIENT_TRAFFIC, with the step that takes longest, if it is not expected to end."""
        if self.ends:
            return
        worst = max(self.steps, key=lambda step: step.seconds)
        finite = math.isfinite(worst.seconds)
        time = f"take {worst.seconds:.0f} s" if finite else "never end"
        raise MlctlError(
            ErrorCode.INSUFFICIENT_TRAFFIC,
            f"at {self.today.per_second:.3g} requests/s the {worst.phase} step at "
            f"{worst.weight} % would {time} ({worst.why}), and the deadline is "
            f"{self.deadline_seconds:g} s",
        )


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The candidate's requests so far; of these `representative` ones may prove latency."""

    requests: float = 0.0
    representative: float = 0.0


def today(counted: Totals, seconds: float, spec: RolloutSpec, edges: tuple[float, ...]) -> Today:
    """Today's traffic from what all slots together counted in `seconds`.

    The shares are two standard errors below what was seen, so that no single bad request of a
    short while makes a rollout seem impossible.
    """
    late, slow = (
        0.0 if limit is None else _at_least(counted.slower_than(limit, edges), counted.timed)
        for limit in (spec.max_p50_ms, spec.max_p99_ms)
    )
    errors = _at_least(min(counted.errors, counted.requests), counted.requests)
    return Today(counted.requests / seconds, errors, late, slow)


def _at_least(hits: int, n: int) -> float:
    share = hits / n if n else 0.0
    return max(0.0, share - _NOISE * math.sqrt(share * (1.0 - share) / n)) if n else 0.0


def plan(spec: RolloutSpec, traffic: Today, tick_seconds: float) -> RolloutPlan:
    """The steps of a rollout under `spec`."""
    steps: list[PlannedStep] = []
    if spec.shadow_percent:
        steps.append(_shadow(spec, traffic, tick_seconds))
    gathered = _Gathered()
    for weight, following in itertools.zip_longest(spec.steps, spec.steps[1:]):
        phase = RolloutPhase.BAKE if weight == 100 else RolloutPhase.SHIFT
        proves = following in (None, 100)
        step = _step(spec, traffic, (phase, weight, proves), gathered)
        # The first requests of a candidate are not judged, and a tick is counted as a whole.
        warmup = 0.0 if gathered.requests else spec.warmup_seconds
        seconds = max(step.seconds, gates.MIN_TICKS * tick_seconds)
        gathered = _after(gathered, spec, weight, seconds * traffic.per_second)
        steps.append(replace(step, seconds=warmup + seconds))
    return RolloutPlan(traffic, tuple(steps), spec.deadline_seconds)


def requests_to_prove(share: float, limit: float, alpha: float) -> float:
    """How many requests show at level `alpha` that bad ones are below `limit`.

    `share` of them are expected to be bad; infinite when that is not below the limit.
    """
    each = e_values.below((share, 1), limit)
    if max(each) <= 0.0:
        return math.inf
    threshold = math.log(1.0 / alpha)
    low, high = 0, 1
    while _evidence(each, high) < threshold:
        low, high = high, 2 * high
        if high > _MAX_REQUESTS:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _evidence(each, middle) < threshold else (low, middle)
    return float(high)


def _evidence(each: e_values.Logs, n: int) -> float:
    return e_values.log_mean(tuple(n * log for log in each))


def _shadow(spec: RolloutSpec, traffic: Today, tick_seconds: float) -> PlannedStep:
    needs = [
        (float(spec.shadow_requests), "minimum copies"),
        (float(rows_needed(spec.max_psi)), "copies to measure drift"),
    ]
    if spec.max_disagreement is not None:
        proof = requests_to_prove(0.0, spec.max_disagreement, spec.alpha)
        needs.append((proof, "proof of agreement"))
    n, why = max(needs)
    waited = _time(n, traffic.per_second * spec.shadow_percent / 100)
    if spec.shadow_wait_seconds is not None and waited > spec.shadow_wait_seconds:
        waited, why = spec.shadow_wait_seconds, "longest wait; its verdict is left out"
    min_seconds = max(spec.shadow_seconds, gates.MIN_TICKS * tick_seconds)
    if waited <= min_seconds:
        why = "minimum time"
    return PlannedStep(RolloutPhase.SHADOW, 0, n, max(waited, min_seconds), why)


def _step(
    spec: RolloutSpec, traffic: Today, where: tuple[RolloutPhase, int, bool], gathered: _Gathered
) -> PlannedStep:
    phase, weight, proves = where
    needs = [(float(spec.min_requests), "minimum requests")]
    if proves:
        needs += _proofs(spec, traffic, gathered, representative=spec.representative(weight))
    n, why = max(needs)
    waited = _time(n, traffic.per_second * weight / 100)
    min_seconds = spec.bake_seconds if phase is RolloutPhase.BAKE else spec.step_seconds
    if waited <= min_seconds:
        why = "minimum time"
    return PlannedStep(phase, weight, n, max(waited, min_seconds), why)


def _proofs(
    spec: RolloutSpec, traffic: Today, gathered: _Gathered, *, representative: bool
) -> list[tuple[float, str]]:
    """What each proof still needs, less what was gathered before."""
    errors = requests_to_prove(traffic.errors, spec.max_error_rate, spec.alpha)
    needs = [(errors - gathered.requests, "proof of the error rate")]
    limits = (
        (spec.max_p50_ms, traffic.late, LATE_SHARE, "proof of p50"),
        (spec.max_p99_ms, traffic.slow, SLOW_SHARE, "proof of p99"),
    )
    for limit, share, allowed, why in limits:
        if limit is not None:
            proof = requests_to_prove(share, allowed, spec.alpha) if representative else math.inf
            needs.append((proof - gathered.representative, why))
    return needs


def _after(gathered: _Gathered, spec: RolloutSpec, weight: int, requests: float) -> _Gathered:
    ours = requests * weight / 100 if math.isfinite(requests) else 0.0
    return _Gathered(
        gathered.requests + ours, gathered.representative + ours * spec.representative(weight)
    )


def _time(requests: float, per_second: float) -> float:
    return requests / per_second if per_second else math.inf
