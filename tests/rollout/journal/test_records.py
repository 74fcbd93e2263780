from __future__ import annotations

from dataclasses import replace

from mlctl.rollout.domain.machine.evidence import GateEvidence, fold, fold_shadow
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec
from mlctl.rollout.domain.statistics.verdict import Action, Gate, Verdict
from mlctl.rollout.domain.traffic.counts import Counts, Window
from mlctl.rollout.journal import records
from mlctl.rollout.journal.journal import Journal
from tests.support.rollouts import revision

SPEC = RolloutSpec(max_p99_ms=50.0, shadow_percent=10, max_disagreement=0.01)


def test_records__progress_with_a_ruling__is_read_back(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    ruling = Verdict(Action.ROLLBACK, Gate.HEALTH, "it died", 1.0, None, 3)
    progress = replace(
        rollout.progress,
        phase=RolloutPhase.ROLLBACK,
        planned=Outcome.ROLLED_BACK,
        ruling=ruling,
        exposed=5.0,
    )
    journal.save(rollout, progress, "phase", {}, journal.take_over("shop"))
    assert journal.rollout(rollout.id).progress == progress


def test_records__evidence__is_read_back_exactly(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    epoch = journal.take_over("shop")
    evidence = rollout.progress.evidence
    assert evidence == GateEvidence()
    for tick in range(20):
        window = Window(Counts(10, tick % 3, 10, tick % 2, 1), Counts(90, 4, 90, 2, 3))
        shadow = ShadowWindow(requests=9, disagreed=tick / 7, rows=20, differed=tick, psi=0.1)
        evidence = fold_shadow(fold(evidence, window, SPEC), shadow, SPEC)
        journal.save(rollout, RolloutProgress(evidence=evidence), records.TICK, {}, epoch)
    assert journal.rollout(rollout.id).progress.evidence == evidence
    assert evidence.ticks == 20
    assert evidence.shadow.trials.hits > 0.0
