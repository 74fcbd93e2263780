"""What was live when, from the record of a rollout that was promoted and one that was not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec
from mlctl.rollout.journal import history
from mlctl.rollout.journal.history import Moment
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.rollouts import revision


@dataclass
class Tape:
    """A journal whose clock stands at the second of each step."""

    journal: Journal
    clock: ManualClock

    def at(self, second: float) -> Moment:
        rollouts = self.journal.rollouts("shop")
        return history.at(second, self.journal.events("shop"), rollouts)

    def step(self, rollout: int, phase: RolloutPhase, weight: int, outcome: Outcome) -> None:
        self.clock.advance(10.0)
        record = self.journal.rollout(rollout)
        epoch = self.journal.deployment("shop").epoch
        progress = RolloutProgress(phase=phase, step=1, planned=outcome)
        kind = "ended" if phase is RolloutPhase.DONE else "phase"
        body = {"phase": phase, "weight": weight}
        self.journal.save(record, progress, kind, body, epoch)


@pytest.fixture
def tape(journal: Journal, clock: ManualClock) -> Tape:
    """Up at 1000, :bb live from 1030, :cc tried at 50 % from 1050 and given up at 1060."""
    journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
    journal.take_over("shop")
    tape = Tape(journal, clock)
    good = journal.begin("shop", revision("tiny:bb"), RolloutSpec())
    for phase, weight in (
        (RolloutPhase.SHIFT, 25),
        (RolloutPhase.BAKE, 100),
        (RolloutPhase.FINALIZE, 100),
    ):
        tape.step(good, phase, weight, Outcome.PROMOTED)
    tape.step(good, RolloutPhase.DONE, 100, Outcome.PROMOTED)
    bad = journal.begin("shop", revision("tiny:cc"), RolloutSpec())
    tape.step(bad, RolloutPhase.SHIFT, 50, Outcome.ROLLED_BACK)
    tape.step(bad, RolloutPhase.DONE, 0, Outcome.ROLLED_BACK)
    clock.advance(10.0)
    journal.retire("shop")
    return tape


def test_intervals__promotion__follow_each_other(tape: Tape) -> None:
    found = history.intervals(tape.journal.events("shop"), tape.journal.rollouts("shop"))
    told = [(each.bento, each.start, each.end, each.rollout) for each in found]
    assert told == [("tiny:aa", 1000.0, 1030.0, None), ("tiny:bb", 1030.0, 1070.0, 1)]


@pytest.mark.parametrize(
    ("second", "live", "candidate"),
    [
        (999.0, None, None),
        (1005.0, "tiny:aa", None),
        (1015.0, "tiny:aa", ("tiny:bb", 25)),
        (1025.0, "tiny:aa", ("tiny:bb", 100)),
        (1035.0, "tiny:bb", None),
        (1055.0, "tiny:bb", ("tiny:cc", 50)),
        (1065.0, "tiny:bb", None),
        (1075.0, None, None),
    ],
)
def test_moment__any_second__has_its_live_bento_and_candidate(
    tape: Tape, second: float, live: str | None, candidate: tuple[str, int] | None
) -> None:
    moment = tape.at(second)
    assert (moment.live.bento if moment.live else None) == live
    share = moment.candidate
    assert (share and (share.bento, share.weight)) == candidate
