"""How a rollout ends for good and bad candidates whose requests come in bursts.

Whole rollouts with the default plan at 100 requests a second, in simulated time, in front of the
product's own gates and state machine (`tests.support.gate_simulation`).
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from rich.table import Table

from rollout.domain.spec import Outcome, RolloutSpec
from tests.support.gate_simulation import Ended, Service, Version, rollout

LIMITED = RolloutSpec(max_p99_ms=50.0)
COMPARED = RolloutSpec()
_GOOD = Version()
STEADY = Service()


@dataclass(frozen=True, slots=True)
class Row:
    """One case: both versions, the plan and the traffic."""

    name: str
    candidate: Version
    live: Version
    spec: RolloutSpec = LIMITED
    service: Service = STEADY


_NEAR = Version(period=187.5, slow_inside=0.3)
_RARE = Version(period=250.0, slow_inside=1.0)
_WITHIN = Version(period=750.0, slow_inside=0.3)
_BAKE = replace(COMPARED, steps=(100,))

ROWS = (
    Row(
        "2 % slow (limit 1 %): 30 % of 5 s, every 75 s", Version(period=75, slow_inside=0.3), _GOOD
    ),
    Row("2 % slow: all of 5 s, every 250 s", _RARE, _GOOD),
    Row("the same, bake of 15 minutes", _RARE, _GOOD, replace(LIMITED, bake_seconds=900.0)),
    Row("equal, 0.8 % slow in bursts", _NEAR, _NEAR),
    Row("the same, compared only", _NEAR, _NEAR, COMPARED),
    Row("equal, no slow request", _GOOD, _GOOD),
    Row("equal, 0.2 % slow in bursts", _WITHIN, _WITHIN),
    Row("3 % slow, live 1 %, compared only", Version(slow=0.03), Version(slow=0.01), COMPARED),
    Row("5 % errors, live 0.1 %", Version(errors=0.05), Version(errors=0.001), COMPARED),
    Row(
        "half of the requests fail at 20/s, bake",
        Version(errors=0.5),
        _GOOD,
        _BAKE,
        Service(per_second=20.0, tick=0.5),
    ),
    Row("all slower than live, bake", Version(slow=1.0), Version(slow=0.01), _BAKE),
    Row(
        "--sticky, one broken client on a good candidate",
        _GOOD,
        _GOOD,
        replace(COMPARED, sticky=True),
        Service(stuck_client=0.01),
    ),
    Row("equal and good, 1 request/s", _GOOD, _GOOD, LIMITED, Service(per_second=1.0)),
)


def table(runs: int) -> Table:
    """Return how many of `runs` seeds of each row were promoted, rolled back, or neither."""
    shown = Table(title=f"{runs} simulated rollouts a row; median seconds to the end")
    shown.add_column("Candidate")
    for outcome in ("promoted", "rolled back", "not enough evidence"):
        shown.add_column(outcome, justify="right")
    with ProcessPoolExecutor() as pool:
        for row in ROWS:
            run = partial(rollout, row.candidate, row.live, row.spec, service=row.service)
            found = list(pool.map(_Seeded(run), range(runs), chunksize=8))
            shown.add_row(row.name, *(_cell(found, each) for each in _OUTCOMES))
    return shown


@dataclass(frozen=True, slots=True)
class _Seeded:
    run: partial[Ended]

    def __call__(self, seed: int) -> Ended:
        return self.run(seed=seed)


_OUTCOMES = (Outcome.PROMOTED, Outcome.ROLLED_BACK, Outcome.INCONCLUSIVE)


def _cell(found: list[Ended], outcome: Outcome) -> str:
    seconds = [each.seconds for each in found if each.outcome is outcome]
    time = f" ({median(seconds):.0f} s)" if seconds else ""
    return f"{len(seconds) / len(found):.1%}{time}"
