from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bundle.errors import ErrorCode, MlctlError
from rollout.judging import gates
from rollout.judging.counts import Counts, Window
from rollout.judging.gates import Action, Evidence, Gate, Verdict
from rollout.machine import Phase, Progress
from rollout.model import Outcome, Ports, RolloutSpec, Settings
from rollout.shadow.window import ShadowWindow
from rollout.state import records
from rollout.state.journal import Journal
from tests.support.rollouts import revision

SPEC = RolloutSpec(max_p99_ms=50.0, shadow_percent=10, max_disagreement=0.01)


def test_a_progress_with_its_ruling_survives(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    ruling = Verdict(Action.ROLLBACK, Gate.HEALTH, "it died", 1.0, None, 3)
    progress = replace(
        rollout.progress,
        phase=Phase.ROLLBACK,
        planned=Outcome.ROLLED_BACK,
        ruling=ruling,
        exposed=5.0,
    )
    journal.save(rollout, progress, "phase", {}, journal.take_over("shop"))
    assert journal.rollout(rollout.id).progress == progress


def test_evidence_survives_exactly(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    epoch = journal.take_over("shop")
    evidence = rollout.progress.evidence
    assert evidence == Evidence(seed=rollout.id)
    for tick in range(20):
        window = Window(Counts(10, tick % 3, 10, tick % 2, 1), Counts(90, 4, 90, 2, 3))
        shadow = ShadowWindow(requests=9, disagreed=tick / 7, rows=20, differed=tick, psi=0.1)
        evidence = gates.fold_shadow(gates.fold(evidence, window, SPEC), shadow, SPEC)
        journal.save(rollout, Progress(evidence=evidence), records.TICK, {}, epoch)
    assert journal.rollout(rollout.id).progress.evidence == evidence
    assert evidence.ticks == 20
    assert evidence.shadow.agreement_proof[0] != 0.0


def test_a_rollout_that_an_older_journal_knows_begins_to_look_anew(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.begin("shop", revision("tiny:bb"), SPEC)
    journal._db.execute("update rollout set progress = json_remove(progress, '$.evidence')")
    assert journal.rollout(rollout).progress.evidence == Evidence(seed=rollout)


# Each table and column with values, and the way to a value inside it where there is one.
_DESCRIBE = (
    ("deployment", "ports", "$"),
    ("deployment", "live", "$"),
    ("rollout", "candidate", "$"),
    ("rollout", "progress", "$"),
    ("rollout", "progress", "$.evidence"),
    ("rollout", "progress", "$.evidence.live"),
    ("rollout", "progress", "$.evidence.shadow"),
    ("rollout", "progress", "$.evidence.shadow.total"),
    ("rollout", "progress", "$.ruling"),
)
_ORDER = (("deployment", "settings"), ("rollout", "spec"))


def test_what_a_newer_mlctl_tells_besides_is_left_out(journal: Journal) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.rollout(journal.begin("shop", revision("tiny:bb"), SPEC))
    ruling = Verdict(Action.ROLLBACK, Gate.HEALTH, "it died", 1.0, None, 3)
    journal.save(
        rollout, replace(rollout.progress, ruling=ruling), "phase", {}, journal.take_over("shop")
    )
    before = journal.deployment("shop"), journal.rollout(rollout.id)
    for table, column, path in _DESCRIBE:
        _put(journal, table, column, f"{path}.seen", {"more": 1})
    for table, column in _ORDER:
        _put(journal, table, column, "$.limit", None)
    assert (journal.deployment("shop"), journal.rollout(rollout.id)) == before


@pytest.mark.parametrize(("table", "column"), _ORDER)
def test_what_a_newer_mlctl_asks_for_is_never_left_out(
    journal: Journal, table: str, column: str
) -> None:
    journal.create("shop", Ports(1, 2), Settings(), revision("tiny:aa"))
    rollout = journal.begin("shop", revision("tiny:bb"), SPEC)
    _put(journal, table, column, "$.max_regret", 0.5)
    with pytest.raises(MlctlError, match="'max_regret'") as refused:
        journal.rollout(rollout) if table == "rollout" else journal.deployment("shop")
    assert refused.value.code is ErrorCode.INVALID_INPUT


def _put(journal: Journal, table: str, column: str, path: str, value: object) -> None:
    """Put a field into the JSON of each row, as another mlctl would have written it."""
    journal._db.execute(
        f"update {table} set {column} = json_set({column}, ?, json(?))",
        (path, json.dumps(value)),
    )
