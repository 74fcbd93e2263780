from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bundle.clock import ManualClock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from rollout.client.links import links
from rollout.daemon.reporting import runs
from rollout.daemon.reporting.cursors import EventCursors
from rollout.daemon.reporting.runs import RunKeeper
from rollout.domain.commands import runs_command
from rollout.domain.state_machine import RolloutPhase
from rollout.journal import paths as places
from rollout.journal.journal import Journal
from tests.support.played import Played
from tests.support.wait import wait_until

WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'starts').open('a').write(sys.argv[2])"


@pytest.fixture
def at_home(home: Path, clock: ManualClock) -> Iterator[Played]:
    """The same journal where processes look for it."""
    assert not home.exists()
    with Journal(places.journal(), clock) as journal:
        yield Played(journal, clock)


def starts(tmp_path: Path) -> str:
    path = tmp_path / "starts"
    return path.read_text() if path.exists() else ""


def poll_until(keeper: RunKeeper, tmp_path: Path, wanted: str) -> None:
    def seen() -> bool:
        keeper.poll()
        return starts(tmp_path) == wanted

    wait_until(seen)


@pytest.mark.slow
def test_a_teller_runs_only_while_something_is_owed(
    played: Played, told: EventCursors, tmp_path: Path, clock: ManualClock
) -> None:
    command = (sys.executable, "-c", WRITES, str(tmp_path))
    keeper = RunKeeper("other", command, told, clock)
    keeper.poll()
    assert keeper._child is None
    played.tick()
    keeper = RunKeeper("shop", command, told, clock)
    poll_until(keeper, tmp_path, "shop")
    wait_until(lambda: not keeper._running())
    keeper.poll()
    assert starts(tmp_path) == "shop"  # not at once again
    clock.advance(2.0)
    poll_until(keeper, tmp_path, "shopshop")
    keeper.close()


@pytest.mark.slow
def test_the_pauses_double_while_it_fails(
    played: Played, told: EventCursors, clock: ManualClock
) -> None:
    played.tick()
    keeper = RunKeeper("shop", ("/bin/false",), told, clock)
    pauses = []
    for _ in range(12):
        keeper.poll()
        wait_until(lambda: not keeper._running())
        pauses.append(keeper._not_before - clock.monotonic())
        clock.advance(pauses[-1])
    keeper.close()
    assert pauses[:3] == [4.0, 8.0, 16.0]
    assert pauses[-1] == 600.0


@pytest.mark.slow
def test_a_teller_ends_with_its_daemon(played: Played, told: EventCursors) -> None:
    played.tick()
    code = "import sys, time; sys.stdin.read(); time.sleep(600)"
    keeper = RunKeeper("shop", (sys.executable, "-c", code), told, SystemClock())
    keeper.poll()
    child = keeper._child
    assert child is not None
    keeper.close()
    assert child.returncode == -9


@pytest.mark.usefixtures("home")
def test_without_a_command_nothing_is_told(
    played: Played, told: EventCursors, clock: ManualClock
) -> None:
    played.tick()
    keeper = RunKeeper("shop", (), told, clock)
    keeper.poll()
    assert keeper._child is None


def test_a_second_teller_leaves_at_once(at_home: Played) -> None:
    at_home.tick()
    with (places.directory("shop") / "runs.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert runs.main("shop") == 0
    assert links("shop").runs == {}


def test_a_registry_that_is_away_ends_the_teller_with_its_error(
    at_home: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Away:
        def open(self, *_: object) -> None:
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, "the registry does not answer")

    monkeypatch.setattr("registry.runs.MlflowRuns", Away)
    at_home.tick()
    assert runs.main("shop") == 12
    assert "the registry does not answer" in capfd.readouterr().err
    assert links("shop").runs[1].error == "the registry does not answer"


@pytest.mark.slow
def test_the_real_command_writes_to_mlflow(at_home: Played, home: Path) -> None:
    at_home.until(RolloutPhase.DONE)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    subprocess.run([*runs_command(), "shop"], env=environment, check=True)
    link = links("shop").runs[1]
    assert (link.closed, link.error, link.url) == (True, None, None)
    with closing(sqlite3.connect(home / "mlflow.db")) as store:
        (status,) = store.execute("select status from runs where run_uuid = ?", (link.run,))
        weight = store.execute("select value from latest_metrics where key = 'weight'").fetchall()
    assert (status, weight) == (("FINISHED",), [(100.0,)])
