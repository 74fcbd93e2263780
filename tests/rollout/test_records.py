from __future__ import annotations

from dataclasses import asdict

from rollout import gates, records
from rollout.counts import Counts, Window
from rollout.gates import Action, Evidence, Gate, Verdict
from rollout.journal import Journal
from rollout.machine import Phase, Progress
from rollout.model import Outcome, Ports, RolloutSpec, Settings
from tests.support.rollouts import revision

SPEC = RolloutSpec(max_p99_ms=50.0)


def test_a_progress_with_its_ruling_survives(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    ruling = Verdict(Action.ROLLBACK, Gate.HEALTH, "it died", 1.0, None, 3)
    progress = Progress(
        phase=Phase.ROLLBACK, planned=Outcome.ROLLED_BACK, ruling=ruling, exposed=5.0
    )
    journal.save(rollout, progress, "phase", {}, journal.take_over("shop"))
    assert journal.rollout(rollout.id).progress == progress


def test_evidence_is_rebuilt_exactly_from_the_tick_events(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    epoch = journal.take_over("shop")
    evidence = Evidence(seed=rollout.id)
    for tick in range(20):
        window = Window(Counts(10, tick % 3, 10, tick % 2, 1), Counts(90, 4, 90, 2, 3))
        judged = tick > 2
        body = {"judged": judged, "window": asdict(window)}
        journal.save(rollout, rollout.progress, records.TICK, body, epoch)
        if judged:
            evidence = gates.fold(evidence, window, SPEC)
    rebuilt = records.with_evidence(rollout, journal.events("shop", rollout=rollout.id))
    assert rebuilt.evidence == evidence
    assert rebuilt.evidence.ticks == 17
