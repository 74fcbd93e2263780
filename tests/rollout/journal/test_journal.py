from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import GateEvidence
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress, Signal
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    Revision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.domain.statistics.scores import ProvedScore
from mlctl.rollout.journal.journal import (
    KEEP_TICKS_SECONDS,
    Journal,
    RequestWaitsError,
    StaleEpochError,
)
from mlctl.rollout.journal.records import Delivery, run_sink
from mlctl.rollout.journal.schema import connect, transaction
from tests.support.clock import ManualClock
from tests.support.rollouts import revision
from tests.support.wait import PATIENCE_SECONDS

BLUE, GREEN = revision("tiny:aa"), revision("tiny:bb")
SPEC = RolloutSpec()
ROLLOUT_COMMANDS = (
    OperatorCommand.PAUSE,
    OperatorCommand.RESUME,
    OperatorCommand.FULL,
)


def create(journal: Journal, name: str = "shop") -> None:
    journal.create(name, Ports(8000, 8001), DeploymentSettings(), BLUE)


def refused(code: ErrorCode, journal: Journal, name: str = "shop") -> str:
    with pytest.raises(MlctlError) as caught:
        journal.begin(name, GREEN, SPEC)
    assert caught.value.code is code
    return caught.value.message


def finish(journal: Journal, rollout: int, epoch: int) -> None:
    """Walk the rollout to its promotion."""
    record = journal.rollout(rollout)
    for phase in (RolloutPhase.BAKE, RolloutPhase.FINALIZE, RolloutPhase.DONE):
        progress = RolloutProgress(phase=phase, step=4, planned=Outcome.PROMOTED)
        journal.save(record, progress, "phase", {}, epoch)
        record = replace(record, progress=progress)


def finalize(journal: Journal, rollout: int, epoch: int) -> None:
    progress = RolloutProgress(phase=RolloutPhase.FINALIZE, step=4, planned=Outcome.PROMOTED)
    journal.save(journal.rollout(rollout), progress, "phase", {}, epoch)


def test_deployment__written__read_back_equal(journal: Journal) -> None:
    create(journal)
    deployment = journal.deployment("shop")
    assert deployment.up
    assert (deployment.slot, deployment.live) == (Slot.BLUE, BLUE)
    assert (deployment.ports, deployment.settings) == (Ports(8000, 8001), DeploymentSettings())
    assert journal.deployments() == (deployment,)


def test_create__name_is_up__rejected(journal: Journal) -> None:
    create(journal)
    with pytest.raises(MlctlError) as caught:
        create(journal)
    assert caught.value.code is ErrorCode.DEPLOYMENT_EXISTS
    journal.retire("shop")
    create(journal)


def test_deployment__unknown_name__near_names_listed(journal: Journal) -> None:
    create(journal)
    with pytest.raises(MlctlError, match=r"'shop2'.*shop") as caught:
        journal.deployment("shop2")
    assert caught.value.code is ErrorCode.DEPLOYMENT_NOT_FOUND


def test_rollout__saved__read_back_equal(journal: Journal, clock: ManualClock) -> None:
    create(journal)
    rollout = journal.rollout(journal.begin("shop", GREEN, SPEC))
    assert (rollout.slot, rollout.live, rollout.candidate) == (Slot.GREEN, BLUE, GREEN)
    begun = RolloutProgress(started=clock.wall(), since=clock.wall(), evidence=GateEvidence())
    assert rollout.progress == begun
    progress = machine.move(rollout.progress, Signal.LAUNCHED, 1001.0)
    journal.save(rollout, progress, "phase", {}, journal.take_over("shop"))
    assert journal.rollout(rollout.id).progress == progress


def test_begin__rollout_active__rejected_by_the_database(journal: Journal) -> None:
    create(journal)
    journal.begin("shop", GREEN, SPEC)
    assert "tiny:bb" in refused(ErrorCode.ROLLOUT_ACTIVE, journal)


def test_begin__live_revision__rejected(journal: Journal) -> None:
    create(journal)
    finish(journal, journal.begin("shop", GREEN, SPEC), journal.take_over("shop"))
    deployment = journal.deployment("shop")
    assert (deployment.slot, deployment.live) == (Slot.GREEN, GREEN)
    refused(ErrorCode.ALREADY_LIVE, journal)
    assert journal.active("shop") is None
    assert journal.rollouts("shop")[0].outcome is Outcome.PROMOTED


def test_begin__deployment_is_down__rejected(journal: Journal) -> None:
    refused(ErrorCode.DEPLOYMENT_NOT_FOUND, journal)
    create(journal)
    journal.retire("shop")
    refused(ErrorCode.DEPLOYMENT_NOT_FOUND, journal)


def test_retire__rollout_active__ends_rolled_back(journal: Journal) -> None:
    create(journal)
    rollout = journal.begin("shop", GREEN, SPEC)
    journal.retire("shop")
    assert journal.rollout(rollout).outcome is Outcome.ROLLED_BACK
    assert [e.kind for e in journal.events("shop")] == ["up", "requested", "ended", "down"]


def test_events__update_or_delete__rejected_by_the_database(
    journal: Journal, tmp_path: Path
) -> None:
    create(journal)
    database = connect(tmp_path / "journal.db")
    for statement in ("update event set kind = 'x'", "delete from event"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()
    assert [event.kind for event in journal.events("shop")] == ["up"]


def test_take_over__former_daemon_writes__rejected(journal: Journal) -> None:
    create(journal)
    rollout = journal.rollout(journal.begin("shop", GREEN, SPEC))
    former, current = journal.take_over("shop"), journal.take_over("shop")
    assert current > former
    with pytest.raises(StaleEpochError):
        journal.save(rollout, RolloutProgress(phase=RolloutPhase.BAKE), "phase", {}, former)
    with pytest.raises(StaleEpochError):
        journal.append("shop", None, "ready", {}, former)
    assert journal.rollout(rollout.id).progress.phase is RolloutPhase.PENDING
    journal.append("shop", None, "ready", {}, current)


def test_take_over__several_deployments__epochs_rise(journal: Journal) -> None:
    create(journal, "shop")
    create(journal, "farm")
    epochs = [journal.take_over(name) for name in ("shop", "farm", "shop")]
    assert epochs == sorted(set(epochs))


def test_request__rollback_of_a_rollout__recorded(journal: Journal) -> None:
    create(journal)
    with pytest.raises(MlctlError, match="no rollout of 'shop' is under way"):
        journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    rollout = journal.begin("shop", GREEN, SPEC)
    assert journal.requests(rollout) == ()
    assert journal.request("shop", OperatorCommand.ROLLBACK, "by hand") == rollout
    (request,) = journal.requests(rollout)
    assert (request.command, request.reason) == (OperatorCommand.ROLLBACK, "by hand")


def test_request__rollback_after_a_promotion__new_rollout_to_the_previous_revision(
    journal: Journal,
) -> None:
    create(journal)
    spec = replace(SPEC, alias=False)
    promoted, epoch = journal.begin("shop", GREEN, spec), journal.take_over("shop")
    finish(journal, promoted, epoch)
    previous = journal.deployment("shop").previous
    assert previous is not None
    assert (previous.revision, previous.promotion) == (BLUE, promoted)
    rollout = journal.rollout(journal.request("shop", OperatorCommand.ROLLBACK, "wrong answers"))
    assert (rollout.reverts, rollout.candidate, rollout.live) == (promoted, BLUE, GREEN)
    assert (rollout.slot, rollout.spec.alias) == (Slot.BLUE, False)
    (requested,) = journal.events("shop", rollout=rollout.id)
    assert requested.body["reason"] == "wrong answers"
    for phase in (RolloutPhase.FINALIZE, RolloutPhase.DONE):
        progress = RolloutProgress(phase=phase, planned=Outcome.RESTORED)
        journal.save(rollout, progress, "phase", {}, epoch)
        rollout = replace(rollout, progress=progress)
    deployment = journal.deployment("shop")
    assert (deployment.live, deployment.slot, deployment.previous) == (BLUE, Slot.BLUE, None)
    assert journal.promotion("shop") == rollout.id
    with pytest.raises(MlctlError, match="already serves tiny:aa again") as caught:
        journal.request("shop", OperatorCommand.ROLLBACK, "once more")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_release_previous__kept_revision__stays_known_but_not_warm(journal: Journal) -> None:
    create(journal)
    epoch = journal.take_over("shop")
    finish(journal, journal.begin("shop", GREEN, SPEC), epoch)
    journal.release_previous("shop", "the time to keep it has ended", epoch)
    previous = journal.deployment("shop").previous
    assert previous is not None
    assert (previous.revision, previous.warm_until) == (BLUE, 0.0)
    last = journal.newest("shop")
    assert last is not None
    assert (last.kind, last.body["bento"]) == ("previous_stopped", "tiny:aa")
    with pytest.raises(StaleEpochError):
        journal.release_previous("shop", "the time to keep it has ended", epoch - 1)


def test_request__promotion_being_recorded__rejected(journal: Journal) -> None:
    create(journal)
    rollout, epoch = journal.begin("shop", GREEN, SPEC), journal.take_over("shop")
    assert journal.promotion("shop") is None
    finalize(journal, rollout, epoch)
    assert journal.promotion("shop") == rollout
    with pytest.raises(MlctlError) as late:
        journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    assert late.value.code is ErrorCode.NOT_FOUND
    assert "tiny:bb is promoted" in late.value.message
    with pytest.raises(MlctlError) as second:
        journal.begin("shop", revision("tiny:cc"), SPEC)
    assert second.value.code is ErrorCode.ROLLOUT_ACTIVE
    assert "rollback" not in second.value.hint


def test_save__rollback_requested__promotion_rejected(journal: Journal) -> None:
    create(journal)
    rollout, epoch = journal.begin("shop", GREEN, SPEC), journal.take_over("shop")
    journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    with pytest.raises(RequestWaitsError):
        finalize(journal, rollout, epoch)
    assert journal.deployment("shop").live == BLUE
    assert journal.rollout(rollout).progress.phase is RolloutPhase.PENDING


def test_begin__another_model__rejected(journal: Journal) -> None:
    create(journal)
    with pytest.raises(MlctlError, match="serves the model 'tiny', not 'other'") as caught:
        journal.begin("shop", revision("other:bb"), SPEC)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert journal.active("shop") is None


def test_promotion__deployment_created_again__none(journal: Journal, clock: ManualClock) -> None:
    create(journal)
    finish(journal, journal.begin("shop", GREEN, SPEC), journal.take_over("shop"))
    journal.retire("shop")
    clock.advance(1.0)
    create(journal)
    assert journal.promotion("shop") is None


def test_processes__by_role__read_back(journal: Journal) -> None:
    create(journal)
    journal.put_process("shop", "proxy", ProcessRef(1, 2.0, "t"))
    journal.put_process("shop", "proxy", ProcessRef(3, 4.0, "u"), {"log": "x"})
    assert journal.processes("shop") == {"proxy": (ProcessRef(3, 4.0, "u"), {"log": "x"})}
    journal.drop_process("shop", "proxy")
    assert journal.processes("shop") == {}


def test_last_command__what_a_client_asks_of_this_deployment__only_that_changes_it(
    journal: Journal, tmp_path: Path
) -> None:
    assert journal.last_command("shop") == 0
    create(journal)
    with Journal(tmp_path / "journal.db") as client:
        create(client, "bank")
        other = client.begin("bank", GREEN, SPEC)
        epoch = client.take_over("bank")
        client.save(client.rollout(other), client.rollout(other).progress, "tick", {}, epoch)
        client.append("shop", None, "ready", {}, client.deployment("shop").epoch)
        assert journal.last_command("shop") == 0
        commands = (partial(client.request, "shop", command, "why") for command in ROLLOUT_COMMANDS)
        asked: list[Callable[[], object]] = [
            partial(client.begin, "shop", GREEN, SPEC),
            *commands,
            partial(client.resize, "shop", lambda each: replace(each, replicas=2), "asked for"),
            partial(client.retire, "shop"),
        ]
        for ask in asked:
            before = journal.last_command("shop")
            ask()
            assert journal.last_command("shop") > before


_PROMOTE = """
import sys
from pathlib import Path
from mlctl.core.errors import MlctlError
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.domain.spec import Revision, RolloutSpec
green = Revision("tiny:bb", "bb".ljust(64, "0"), "tiny-optimized", "1", "models:/tiny/1")
with Journal(Path(sys.argv[1])) as journal:
    sys.stdin.read()
    try:
        journal.begin("shop", green, RolloutSpec())
        print("begun")
    except MlctlError as error:
        print(error.code)
"""


@pytest.mark.slow
def test_begin__several_processes__one_succeeds(journal: Journal, tmp_path: Path) -> None:
    create(journal)
    command = [sys.executable, "-c", _PROMOTE, str(tmp_path / "journal.db")]
    pipe = subprocess.PIPE
    clients = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    for client in clients:
        assert client.stdin is not None
        client.stdin.close()
        client.stdin = None
    answers = [client.communicate(timeout=PATIENCE_SECONDS)[0].strip() for client in clients]
    assert sorted(answers) == ["begun", *["rollout_active"] * 5]


def test_check__what_begin_rejects__same_error(journal: Journal) -> None:
    create(journal)
    journal.check("shop", GREEN, SPEC)
    with pytest.raises(MlctlError) as live:
        journal.check("shop", BLUE, SPEC)
    assert live.value.code is ErrorCode.ALREADY_LIVE
    journal.begin("shop", GREEN, SPEC)
    with pytest.raises(MlctlError) as active:
        journal.check("shop", revision("tiny:cc"), SPEC)
    assert active.value.code is ErrorCode.ROLLOUT_ACTIVE


def test_begin__steps_cannot_prove_latency__rejected(journal: Journal) -> None:
    create(journal)
    with pytest.raises(MlctlError, match="none from 50 to 99 %") as refused:
        journal.begin("shop", GREEN, RolloutSpec(steps=(5, 100), max_p99_ms=50.0))
    assert refused.value.code is ErrorCode.INVALID_INPUT
    assert journal.active("shop") is None
    flattered = RolloutSpec(steps=(5, 100), max_p99_ms=50.0, allow_low_weight_proof=True)
    journal.begin("shop", GREEN, flattered)


def test_request__resume_without_a_pause__rejected(journal: Journal) -> None:
    create(journal)
    journal.begin("shop", GREEN, SPEC)
    with pytest.raises(MlctlError, match="is not paused"):
        journal.request("shop", OperatorCommand.RESUME, "by hand")
    journal.request("shop", OperatorCommand.PAUSE, "by hand")
    journal.request(
        "shop", OperatorCommand.RESUME, "at once"
    )  # the pause is not applied yet, but asked


def test_events__many_ticks__others_found_without_reading_them(journal: Journal) -> None:
    create(journal)
    rollout = journal.begin("shop", GREEN, SPEC)
    journal.request("shop", OperatorCommand.PAUSE, "by hand")
    with transaction(journal._db):
        journal._db.executemany(
            "insert into event (deployment, rollout, at, epoch, kind, body)"
            " values ('shop', ?, 1.0, 1, 'tick', '{}')",
            [(rollout,)] * 5000,
        )
    journal.request("shop", OperatorCommand.ROLLBACK, "by hand")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    journal._db.set_progress_handler(count, 100)
    commands = [request.command for request in journal.requests(rollout)]
    kinds = [event.kind for event in journal.events("shop", ticks=False)]
    of_rollout = journal.events("shop", rollout=rollout, ticks=False)
    last = journal.newest("shop")
    page = journal.events("shop", after=10, rollout=rollout, limit=3)
    journal._db.set_progress_handler(None, 0)
    assert commands == [OperatorCommand.PAUSE, OperatorCommand.ROLLBACK]
    assert kinds == ["up", "requested", OperatorCommand.PAUSE, OperatorCommand.ROLLBACK]
    assert [event.kind for event in of_rollout] == kinds[1:]
    assert last is not None
    assert last.kind == OperatorCommand.ROLLBACK
    assert [event.seq for event in page] == [11, 12, 13]
    assert steps < 2000, f"{steps} steps of SQLite's machine for 5000 ticks"


def test_prune__old_ticks_of_an_ended_rollout__deleted_and_all_else_stays(
    journal: Journal, clock: ManualClock
) -> None:
    create(journal)
    epoch = journal.take_over("shop")
    ended = journal.begin("shop", GREEN, SPEC)
    journal.append("shop", ended, "tick", {}, epoch)
    finish(journal, ended, epoch)
    journal.put_delivery("shop", run_sink(ended), Delivery(1, body={"closed": True}))
    unreported = journal.begin("shop", BLUE, SPEC)
    journal.append("shop", unreported, "tick", {}, epoch)
    finish(journal, unreported, epoch)
    kinds = [event.kind for event in journal.events("shop", ticks=False)]
    journal.prune("shop")
    assert len(journal.events("shop", rollout=ended)) == 5
    clock.advance(KEEP_TICKS_SECONDS + 1.0)
    journal.prune("shop")
    assert "tick" not in {event.kind for event in journal.events("shop", rollout=ended)}
    assert "tick" in {event.kind for event in journal.events("shop", rollout=unreported)}
    assert [event.kind for event in journal.events("shop", ticks=False)] == kinds


def test_prune__many_old_ticks__makes_the_file_smaller(
    journal: Journal, clock: ManualClock, tmp_path: Path
) -> None:
    def pages() -> int:
        with closing(connect(tmp_path / "journal.db")) as db:
            return int(db.execute("pragma page_count").fetchone()[0])

    create(journal)
    epoch = journal.take_over("shop")
    ended = journal.begin("shop", GREEN, SPEC)
    before = pages()
    for _ in range(200):
        journal.append("shop", ended, "tick", {"counts": "x" * 1000}, epoch)
    finish(journal, ended, epoch)
    journal.put_delivery("shop", run_sink(ended), Delivery(1, body={"closed": True}))
    assert pages() > before + 40
    clock.advance(KEEP_TICKS_SECONDS + 1.0)
    journal.prune("shop")
    assert pages() < before + 10


def test_begin__proved_score_is_clearly_worse__rejected_unless_the_spec_allows_it(
    journal: Journal,
) -> None:
    def scored(revision: Revision, value: float) -> Revision:
        score = ProvedScore("tiny", "accuracy", value, higher_is_better=True, rows=1000, data="d")
        return replace(revision, scores=(score,))

    journal.create("shop", Ports(8000, 8001), DeploymentSettings(), scored(BLUE, 0.89))
    with pytest.raises(MlctlError) as caught:
        journal.begin("shop", scored(GREEN, 0.30), SPEC)
    assert caught.value.code is ErrorCode.WORSE_EVIDENCE
    assert journal.active("shop") is None
    journal.begin("shop", scored(GREEN, 0.30), replace(SPEC, worse=True))
    assert journal.active("shop") is not None
