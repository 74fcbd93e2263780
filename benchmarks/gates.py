"""How rollouts of good and bad candidates end when their faults come in bursts.

Whole rollouts with the default plan at 100 requests a second, in simulated time, in front of the
product's own gates and state machine (`benchmarks.gate_simulation`).
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.gate_simulation import Ended, Service, Version, rollout
from benchmarks.result import BenchmarkResult
from mlctl.rollout.domain.spec import Outcome, RolloutSpec

LIMITED = RolloutSpec(max_p99_ms=50.0)
COMPARED = RolloutSpec()
_GOOD = Version()
STEADY = Service()


@dataclass(frozen=True, slots=True)
class GateCase:
    """Both versions, the plan and the traffic."""

    name: str
    candidate: Version
    live: Version
    spec: RolloutSpec = LIMITED
    service: Service = STEADY


_NEAR = Version(period=187.5, slow_inside=0.3)
_RARE = Version(period=250.0, slow_inside=1.0)
_WITHIN = Version(period=750.0, slow_inside=0.3)
_OUTAGES = Version(period=250.0, errors_inside=0.3)
_UNKNOWN = Service(record_seconds=0.0)
_SHORT = replace(COMPARED, deadline_seconds=1200.0)
_BAKE = replace(COMPARED, steps=(100,))
_LONG = replace(LIMITED, steps=(50, 100), step_seconds=600.0)

CASES = (
    GateCase(
        "2 % slow (limit 1 %): 30 % of 5 s, every 75 s", Version(period=75, slow_inside=0.3), _GOOD
    ),
    GateCase("2 % slow: all of 5 s, every 250 s", _RARE, _GOOD),
    GateCase("the same, bake of 15 minutes", _RARE, _GOOD, replace(LIMITED, bake_seconds=900.0)),
    GateCase("equal, 0.8 % slow in bursts", _NEAR, _NEAR),
    GateCase("the same, compared only", _NEAR, _NEAR, COMPARED),
    GateCase(
        "the same, compared only, no record of the live version", _NEAR, _NEAR, COMPARED, _UNKNOWN
    ),
    GateCase(
        "equal, 30 % errors of 5 s, every 250 s, deadline of 20 minutes",
        _OUTAGES,
        _OUTAGES,
        _SHORT,
    ),
    GateCase(
        "the same outages, no record of the live version", _OUTAGES, _OUTAGES, _SHORT, _UNKNOWN
    ),
    GateCase("equal, no slow request", _GOOD, _GOOD),
    GateCase("equal, 0.2 % slow in bursts", _WITHIN, _WITHIN),
    GateCase("3 % slow, live 1 %, compared only", Version(slow=0.03), Version(slow=0.01), COMPARED),
    GateCase("5 % errors, live 0.1 %", Version(errors=0.05), Version(errors=0.001), COMPARED),
    GateCase(
        "8 % errors from 250 s of a step on",
        Version(errors=0.08, since=250.0),
        Version(errors=0.001),
        _LONG,
    ),
    GateCase(
        "half of the requests fail at 20/s, bake",
        Version(errors=0.5),
        _GOOD,
        _BAKE,
        Service(per_second=20.0, tick=0.5),
    ),
    GateCase("all slower than live, bake", Version(slow=1.0), Version(slow=0.01), _BAKE),
    GateCase(
        "--sticky, one broken client on a good candidate",
        _GOOD,
        _GOOD,
        replace(COMPARED, sticky=True),
        Service(stuck_client=0.01),
    ),
    GateCase("good, 30 % slow in its first 10 s", Version(slow=0.3, until=10.0), _GOOD),
    GateCase(
        "equal, 0.5 % slow, growing threefold in an hour",
        Version(slow=0.005),
        Version(slow=0.005),
        service=Service(growth=2.0),
    ),
    GateCase(
        "equal, 0.5 % errors, each retried once",
        Version(errors=0.005),
        Version(errors=0.005),
        service=Service(retries=True),
    ),
    GateCase("equal and good, 1 request/s", _GOOD, _GOOD, LIMITED, Service(per_second=1.0)),
)


_OUTCOMES = {
    "promoted": Outcome.PROMOTED,
    "rolled back": Outcome.ROLLED_BACK,
    "not enough evidence": Outcome.INCONCLUSIVE,
}


def measure(runs: int, result: BenchmarkResult) -> None:
    """Add the table of how `runs` seeds of each case end, and a chart of the promotions."""
    title = f"{runs} simulated rollouts per case; median seconds to the end"
    table = result.table(title, "candidate", *_OUTCOMES)
    promoted = {}
    with ProcessPoolExecutor() as pool:
        for case in CASES:
            ended = list(pool.map(partial(_run, case), range(runs), chunksize=8))
            table.add(case.name, *(_cell(ended, outcome) for outcome in _OUTCOMES.values()))
            count = sum(each.outcome is Outcome.PROMOTED for each in ended)
            promoted[case.name] = 100 * count / runs
    result.chart("Simulated rollouts that were promoted", "%", promoted)


def _run(case: GateCase, seed: int) -> Ended:
    return rollout(case.candidate, case.live, case.spec, seed, case.service)


def _cell(ended: list[Ended], outcome: Outcome) -> str:
    seconds = [each.seconds for each in ended if each.outcome is outcome]
    time = f" ({median(seconds):.0f} s)" if seconds else ""
    return f"{len(seconds) / len(ended):.1%}{time}"
