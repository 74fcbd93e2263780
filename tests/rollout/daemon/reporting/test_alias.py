from __future__ import annotations

import io
import sys
import threading
from dataclasses import dataclass, field, replace

import pytest

from mlctl.rollout.client.rendering import event_line
from mlctl.rollout.daemon.reporting.alias import AliasSink, main
from mlctl.rollout.daemon.reporting.outbox import (
    Delivering,
    DeliveryError,
    OutboxStopped,
    run_command,
)
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    Revision,
    RolloutSpec,
    champion_command,
)
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import dumps
from tests.support.clock import ManualClock
from tests.support.rollouts import revision

FORMER, LIVE = revision("tiny:aa"), revision("tiny:bb")


@dataclass
class Registry:
    """A registry that remembers the champions, and fails the first `failures` times."""

    failures: int = 0
    written: list[Revision] = field(default_factory=list)

    def write(self, live: Revision) -> None:
        if self.failures:
            self.failures -= 1
            raise DeliveryError("the registry does not answer")
        self.written.append(live)


@pytest.fixture
def promoted(journal: Journal) -> int:
    """The epoch of the daemon of a deployment in which LIVE was promoted by rollout 1."""
    journal.create("shop", Ports(1, 2), DeploymentSettings(), FORMER)
    epoch = journal.take_over("shop")
    promote(journal, LIVE, epoch)
    return epoch


def promote(journal: Journal, candidate: Revision, epoch: int) -> None:
    rollout = journal.rollout(journal.begin("shop", candidate, RolloutSpec()))
    for phase in (RolloutPhase.FINALIZE, RolloutPhase.DONE):
        progress = RolloutProgress(phase=phase, planned=Outcome.PROMOTED)
        journal.save(rollout, progress, "phase", {}, epoch)
        rollout = replace(rollout, progress=progress)


def delivering(journal: Journal, clock: ManualClock, registry: Registry) -> Delivering:
    return Delivering("shop", AliasSink("shop", journal, registry.write), journal, clock)


@pytest.mark.usefixtures("promoted")
def test_alias__promoted_revision__written_once(journal: Journal, clock: ManualClock) -> None:
    registry = Registry()
    outbox = delivering(journal, clock, registry)
    for _ in range(3):
        outbox.step()
    assert registry.written == [LIVE]
    assert journal.deployment("shop").champion == LIVE.digest
    assert [e.kind for e in journal.events("shop", rollout=1)].count("champion_written") == 1


@pytest.mark.usefixtures("promoted")
def test_alias__registry_fails__recorded_and_retried_after_a_pause(
    journal: Journal, clock: ManualClock
) -> None:
    registry = Registry(failures=1)
    outbox = delivering(journal, clock, registry)
    pause = outbox.step()
    (failed,) = [e for e in journal.events("shop", rollout=1) if e.kind == "champion_failed"]
    assert (failed.body["message"], failed.body["digest"]) == (
        "the registry does not answer",
        LIVE.digest,
    )
    assert "the registry was not updated: the registry does not answer" in str(event_line(failed))
    outbox.step()
    assert registry.written == []
    clock.advance(pause)
    outbox.step()
    assert registry.written == [LIVE]


@pytest.mark.usefixtures("promoted")
def test_alias__registry_keeps_failing__pauses_double_and_survive_a_restart(
    journal: Journal, clock: ManualClock
) -> None:
    registry = Registry(failures=12)
    pauses = []
    for number in range(1, 12):
        pauses.append(delivering(journal, clock, registry).step())  # a new daemon each time
        assert registry.failures == 12 - number
        clock.advance(pauses[-1] - 0.5)
        delivering(journal, clock, registry).step()
        assert registry.failures == 12 - number, "retried too early"
        clock.advance(0.5)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0
    kinds = [event.kind for event in journal.events("shop")]
    assert kinds.count("champion_failed") == 1


def test_alias__revision_of_up__not_written(journal: Journal, clock: ManualClock) -> None:
    journal.create("shop", Ports(1, 2), DeploymentSettings(), FORMER)
    journal.take_over("shop")
    registry = Registry()
    delivering(journal, clock, registry).step()
    assert registry.written == []


def test_alias__another_revision_promoted__not_delayed_by_an_earlier_failure(
    journal: Journal, clock: ManualClock, promoted: int
) -> None:
    registry = Registry(failures=1)
    outbox = delivering(journal, clock, registry)
    outbox.step()
    promote(journal, revision("tiny:cc"), promoted)
    outbox.step()
    assert registry.written == [revision("tiny:cc")]


@pytest.mark.usefixtures("promoted")
def test_alias__clock_set_back__retried_at_once(journal: Journal, clock: ManualClock) -> None:
    registry = Registry(failures=1)
    clock.advance(1e6)
    delivering(journal, clock, registry).step()
    delivering(journal, ManualClock(1000.0), registry).step()
    assert registry.written == [LIVE]


@pytest.mark.slow
def test_run_command__input__on_its_standard_input() -> None:
    script = "import json, sys; assert json.load(sys.stdin)['bento'] == 'tiny:bb'"
    run_command([sys.executable, "-c", script], dumps(LIVE), threading.Event())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such model')"], "no such model"),
        (["/bin/false"], "exit code 1"),
        (["/no/such/command"], "/no/such/command"),
    ],
)
def test_run_command__fails__its_last_words(command: list[str], words: str) -> None:
    with pytest.raises(DeliveryError, match=words):
        run_command(command, "", threading.Event())


@pytest.mark.slow
def test_run_command__takes_too_long__killed() -> None:
    with pytest.raises(DeliveryError, match="too long"):
        run_command(["/bin/sleep", "60"], "", threading.Event(), seconds=0.2)


def test_run_command__daemon_stopped__not_started() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(OutboxStopped):
        run_command(["/no/such/command"], "", stop)


def test_alias_command__bento_of_several_models__all_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    several = replace(LIVE, models=("a" * 64, "b" * 64))
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("mlctl.registry.mlflow_catalog.MlflowCatalog.connect", lambda _: None)
    monkeypatch.setattr(
        "mlctl.registry.mlflow_catalog.MlflowCatalog.write_champion",
        lambda _, digest: written.append(digest),
    )
    for given in (several, LIVE):
        monkeypatch.setattr("sys.stdin", io.StringIO(dumps(given)))
        assert main() == 0
    assert written == ["a" * 64, "b" * 64, LIVE.digest]


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_alias_command__version_not_registered__fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(DeliveryError, match="no registered version has the digest"):
        run_command(champion_command(), dumps(LIVE), threading.Event())
