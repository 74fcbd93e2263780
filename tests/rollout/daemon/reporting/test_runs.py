from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.links import links
from mlctl.rollout.daemon.reporting import runs
from mlctl.rollout.daemon.reporting.outbox import DeliveryError, OutboxStopped
from mlctl.rollout.daemon.reporting.runs import RunsSink
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import runs_command
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.played import Played
from tests.support.wait import wait_until

WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'starts').open('a').write(sys.argv[2])"


@pytest.fixture
def at_home(home: Path, clock: ManualClock) -> Iterator[Played]:
    """The same journal where processes look for it."""
    assert not home.exists()
    with Journal(paths.journal(), clock) as journal:
        yield Played(journal, clock)


def starts(tmp_path: Path) -> str:
    path = tmp_path / "starts"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_runs_sink__rollout_not_reported__command_runs_for_its_deployment(
    played: Played, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", WRITES, str(tmp_path))
    played.tick()
    assert RunsSink("other", command, played.journal, threading.Event()).pending() is None
    sink = RunsSink("shop", command, played.journal, threading.Event())
    assert sink.pending() is not None
    list(sink.deliver(0))
    assert starts(tmp_path) == "shop"


@pytest.mark.slow
def test_runs_sink__command_fails__delivery_fails(played: Played) -> None:
    sink = RunsSink("shop", ("/bin/false",), played.journal, threading.Event())
    with pytest.raises(DeliveryError, match="exit code 1"):
        list(sink.deliver(0))


@pytest.mark.slow
def test_runs_sink__daemon_ends__command_killed(played: Played, tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'starts')!r}, 'w').write(str(os.getpid()));"
    stop = threading.Event()
    command = (sys.executable, "-c", f"{code} time.sleep(600)")
    sink = RunsSink("shop", command, played.journal, stop)

    def end() -> None:
        wait_until(lambda: starts(tmp_path))
        stop.set()

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(OutboxStopped):
        list(sink.deliver(0))
    ender.join()
    assert not psutil.pid_exists(int(starts(tmp_path)))


def test_runs_sink__no_command__nothing_pending(played: Played) -> None:
    played.tick()
    assert RunsSink("shop", (), played.journal, threading.Event()).pending() is None


def test_runs_command__another_one_runs__ends_at_once(at_home: Played) -> None:
    at_home.tick()
    with (paths.directory("shop") / "runs.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert runs.main("shop") == 0
    assert links("shop").runs == {}


def test_runs_command__registry_unavailable__ends_with_its_error(
    at_home: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Away:
        def open(self, *_: object) -> None:
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, "the registry does not answer")

    monkeypatch.setattr("mlctl.registry.runs.MlflowRuns", Away)
    at_home.tick()
    assert runs.main("shop") == 12
    assert "the registry does not answer" in capfd.readouterr().err
    assert links("shop").runs[1].error == "the registry does not answer"


@pytest.mark.slow
def test_runs_command__finished_rollout__run_in_mlflow(at_home: Played, home: Path) -> None:
    at_home.until(RolloutPhase.DONE)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    subprocess.run([*runs_command(), "shop"], env=environment, check=True)
    link = links("shop").runs[1]
    assert (link.closed, link.error, link.url) == (True, None, None)
    with closing(sqlite3.connect(home / "mlflow.db")) as store:
        (status,) = store.execute("select status from runs where run_uuid = ?", (link.run,))
        weight = store.execute("select value from latest_metrics where key = 'weight'").fetchall()
    assert (status, weight) == (("FINISHED",), [(100.0,)])
