from __future__ import annotations

import io
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from bundle.clock import ManualClock
from bundle.errors import MlctlError
from cli.rollouts import event_line
from rollout.daemon.reporting.alias import ChampionKeeper, ProcessChampions, main
from rollout.domain.commands import champion_command
from rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec
from rollout.domain.state_machine import RolloutPhase, RolloutProgress
from rollout.journal.journal import Journal
from rollout.journal.records import Deployment, dumps
from tests.support.memory import MemoryChampions
from tests.support.rollouts import revision
from tests.support.wait import wait_until

FORMER, LIVE = revision("tiny:aa"), revision("tiny:bb")


@pytest.fixture
def deployment(journal: Journal) -> Deployment:
    """One in which LIVE was promoted by rollout 1."""
    journal.create("shop", Ports(1, 2), DeploymentSettings(), FORMER)
    rollout = journal.rollout(journal.begin("shop", LIVE, RolloutSpec()))
    progress = RolloutProgress(phase=RolloutPhase.FINALIZE, planned=Outcome.PROMOTED)
    journal.save(rollout, progress, "phase", {}, journal.take_over("shop"))
    return journal.deployment("shop")


def poll_until(keeper: ChampionKeeper, journal: Journal, kind: str) -> None:
    def seen() -> bool:
        keeper.poll(journal.deployment("shop"))
        return any(event.kind == kind for event in journal.events("shop"))

    wait_until(seen, what=kind)


def test_the_live_revision_is_written_once(
    journal: Journal, clock: ManualClock, deployment: Deployment
) -> None:
    champions = MemoryChampions()
    keeper = ChampionKeeper(champions, journal, clock, 30.0)
    assert not keeper.settled(deployment)
    poll_until(keeper, journal, "champion_written")
    assert keeper.settled(journal.deployment("shop"))
    for _ in range(3):
        keeper.poll(journal.deployment("shop"))
    assert champions.written == [LIVE]


def test_a_failure_is_recorded_and_tried_again_after_a_while(
    journal: Journal, clock: ManualClock, deployment: Deployment
) -> None:
    champions = MemoryChampions(failures=1)
    keeper = ChampionKeeper(champions, journal, clock, 30.0)
    poll_until(keeper, journal, "champion_failed")
    assert keeper.settled(deployment)
    keeper.poll(journal.deployment("shop"))
    assert champions.written == []
    clock.advance(31.0)
    poll_until(keeper, journal, "champion_written")
    assert champions.written == [LIVE]


def test_a_failure_is_told_to_those_who_follow_the_rollout(
    journal: Journal, clock: ManualClock, deployment: Deployment
) -> None:
    keeper = ChampionKeeper(MemoryChampions(failures=1), journal, clock, 30.0)
    poll_until(keeper, journal, "champion_failed")
    (failed,) = [e for e in journal.events("shop", rollout=1) if e.kind == "champion_failed"]
    assert failed.body["message"] == "the registry does not answer"
    assert failed.body["digest"] == deployment.live.digest
    shown = event_line(failed) or ""
    assert "the registry was not updated: the registry does not answer" in shown


@pytest.mark.usefixtures("deployment")
def test_the_pauses_between_failures_double_up_to_ten_minutes(
    journal: Journal, clock: ManualClock
) -> None:
    keeper = ChampionKeeper(MemoryChampions(failures=7), journal, clock, 30.0)
    pauses: list[float] = []
    for number in range(1, 8):
        wait_until(partial(_failed_times, keeper, journal, number))
        pauses.append(journal.events("shop")[-1].body["again_in"])
        clock.advance(pauses[-1] - 1.0)
        keeper.poll(journal.deployment("shop"))
        assert _failed_times(keeper, journal, number), "it was tried too early"
        clock.advance(1.0)
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def _failed_times(keeper: ChampionKeeper, journal: Journal, number: int) -> bool:
    keeper.poll(journal.deployment("shop"))
    return [e.kind for e in journal.events("shop")].count("champion_failed") == number


def test_what_up_started_with_is_not_written(journal: Journal, clock: ManualClock) -> None:
    journal.create("staging", Ports(1, 2), DeploymentSettings(), FORMER)
    journal.take_over("staging")
    champions = MemoryChampions()
    keeper = ChampionKeeper(champions, journal, clock, 30.0)
    for _ in range(3):
        keeper.poll(journal.deployment("staging"))
        assert keeper.idle
    assert champions.written == []


def test_another_revision_is_not_held_up_by_a_failure(
    journal: Journal, clock: ManualClock, deployment: Deployment
) -> None:
    champions = MemoryChampions(failures=1)
    keeper = ChampionKeeper(champions, journal, clock, 30.0)
    poll_until(keeper, journal, "champion_failed")
    keeper.poll(replace(deployment, live=revision("tiny:cc")))
    wait_until(lambda: champions.written == [revision("tiny:cc")])


@pytest.mark.slow
def test_the_command_reads_the_revision() -> None:
    script = "import json, sys; assert json.load(sys.stdin)['bento'] == 'tiny:bb'"
    ProcessChampions([sys.executable, "-c", script]).write_champion(LIVE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such model')"], "no such model"),
        (["/bin/false"], "exit code 1"),
        (["/no/such/command"], "/no/such/command"),
    ],
)
def test_a_failing_command_gives_its_last_words(command: list[str], words: str) -> None:
    with pytest.raises(MlctlError, match=words):
        ProcessChampions(command).write_champion(LIVE)


def pid_of(file: Path) -> int:
    """The number that a started command wrote to `file`, once it did."""
    wait_until(lambda: file.exists() and file.read_text().strip(), what="the command runs")
    return int(file.read_text())


READS = "import os, sys; open({!r}, 'a').write(f'{{os.getpid()}} '); given = sys.stdin.read(); "


@pytest.mark.slow
def test_what_was_prepared_is_what_writes(tmp_path: Path) -> None:
    started, written = tmp_path / "started", tmp_path / "written"
    script = READS.format(str(started)) + f"open({str(written)!r}, 'w').write(given)"
    writer = ProcessChampions([sys.executable, "-c", script])
    writer.prepare()
    writer.prepare()
    pid = pid_of(started)
    writer.write_champion(LIVE)
    assert started.read_text() == f"{pid} ", "it was started again"
    assert "tiny:bb" in written.read_text()


@pytest.mark.slow
def test_what_was_prepared_for_nothing_is_ended(tmp_path: Path) -> None:
    started = tmp_path / "started"
    writer = ProcessChampions([sys.executable, "-c", READS.format(str(started))])
    writer.prepare()
    pid = pid_of(started)
    writer.dismiss()
    writer.dismiss()
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_what_failed_while_it_was_prepared_is_tried_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    once = "os.path.exists(mark) or (tell(), sys.exit('no registry'))"
    tell = "tell = lambda: open(mark, 'w').write(str(os.getpid()))"
    script = f"import os, sys; {tell}; mark = {str(started)!r}; {once}; sys.stdin.read()"
    writer = ProcessChampions([sys.executable, "-c", script])
    writer.prepare()
    failing = psutil.Process(pid_of(started))
    wait_until(lambda: failing.status() == psutil.STATUS_ZOMBIE, what="it has failed")
    writer.write_champion(LIVE)


def test_a_write_is_prepared_near_the_end_of_the_bake_and_not_after_a_rollback(
    journal: Journal, clock: ManualClock
) -> None:
    journal.create("shop", Ports(1, 2), DeploymentSettings(), FORMER)
    spec = RolloutSpec(bake_seconds=60.0)
    rollout = journal.rollout(journal.begin("shop", LIVE, spec))
    champions = MemoryChampions()
    keeper = ChampionKeeper(champions, journal, clock, 30.0)

    begun = clock.wall()

    def foreseen(phase: RolloutPhase, later: float) -> bool:
        clock.advance(later)
        keeper.foresee(replace(rollout, progress=RolloutProgress(phase=phase, since=begun)))
        return champions.prepared

    assert not foreseen(RolloutPhase.BAKE, 39.0)
    assert foreseen(RolloutPhase.BAKE, 2.0)
    assert foreseen(RolloutPhase.FINALIZE, 1.0)
    assert not foreseen(RolloutPhase.ROLLBACK, 1.0)
    quiet = replace(rollout, spec=replace(spec, alias=False))
    keeper.foresee(replace(quiet, progress=RolloutProgress(phase=RolloutPhase.BAKE, since=begun)))
    assert not champions.prepared


def test_every_model_of_a_bento_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    several = replace(LIVE, models=("a" * 64, "b" * 64))
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("registry.mlflow_catalog.MlflowCatalog.connect", lambda _: None)
    monkeypatch.setattr(
        "registry.mlflow_catalog.MlflowCatalog.write_champion",
        lambda _, digest: written.append(digest),
    )
    for given in (several, LIVE):
        monkeypatch.setattr("sys.stdin", io.StringIO(dumps(given)))
        assert main() == 0
    assert written == ["a" * 64, "b" * 64, LIVE.digest]


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_the_real_command_asks_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(MlctlError, match="no registered version has the digest"):
        ProcessChampions(champion_command()).write_champion(LIVE)
