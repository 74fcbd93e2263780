"""The daemon's parent, with small scripts in the daemon's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mlctl.rollout.daemon.restarter import STUCK_SECONDS, Watcher, seconds_unseen
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

# Notes its start, then leaves with the code in the file, or stays.
CHILD = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[1])
code = (place / "code").read_text()
(place / "pid").write_text(str(os.getpid()))
with (place / "starts").open("a") as file:
    file.write("x")
time.sleep(60) if code == "stay" else sys.exit(int(code))
"""


class Stage:
    def __init__(self, directory: Path) -> None:
        self.directory, self.heartbeat = directory, directory / "heartbeat"
        self.watcher = Watcher([sys.executable, "-c", CHILD, str(directory)], self.heartbeat)
        self.thread = threading.Thread(target=self.watcher.run)
        self.tell("stay")

    def tell(self, code: str) -> None:
        (self.directory / "code").write_text(code)

    @property
    def starts(self) -> int:
        file = self.directory / "starts"
        return file.stat().st_size if file.exists() else 0

    @property
    def child(self) -> int:
        return int((self.directory / "pid").read_text())


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.watcher.stop(signal.SIGTERM, None)
    stage.thread.join()


def test_watcher__child_killed_then_exits__is_started_again_once(stage: Stage) -> None:
    stage.thread.start()
    wait_until(lambda: stage.starts == 1)
    stage.tell("0")
    os.kill(stage.child, signal.SIGKILL)
    stage.thread.join(60)
    assert not stage.thread.is_alive()
    assert stage.starts == 2


def test_watcher__child_fails__is_started_again(stage: Stage) -> None:
    stage.tell("1")
    stage.thread.start()
    wait_until(lambda: stage.starts == 2)
    stage.tell("0")
    stage.thread.join(60)
    assert stage.starts == 3


def test_watcher__stopped__ends_the_child(stage: Stage) -> None:
    stage.thread.start()
    wait_until(lambda: stage.starts == 1)
    stage.watcher.stop(signal.SIGTERM, None)
    stage.thread.join(60)
    assert not psutil.pid_exists(stage.child)
    assert stage.starts == 1


def test_watcher__child_without_heartbeat__is_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.rollout.daemon.restarter.STUCK_SECONDS", 0.5)
    stage.thread.start()
    wait_until(lambda: stage.starts == 1)
    stage.tell("0")
    stage.thread.join(60)
    assert stage.starts == 2


def test_seconds_unseen__heartbeat_of_any_age__is_its_age(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    assert seconds_unseen(heartbeat) == pytest.approx(0.0, abs=1.0)
    heartbeat.touch()
    old = time.time() - 2 * STUCK_SECONDS
    os.utime(heartbeat, (old, old))
    assert seconds_unseen(heartbeat) == pytest.approx(2 * STUCK_SECONDS, abs=1.0)
    assert seconds_unseen(heartbeat, since=time.time()) == pytest.approx(0.0, abs=1.0)


def test_watcher__imported__loads_no_libraries() -> None:
    """It lives as long as the deployment, so it loads nothing that is not needed."""
    script = "import sys; first = {*sys.modules}; import mlctl.rollout.daemon.restarter; "
    script += "print(*{*sys.modules} - first)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"httpx", "pydantic", "mlflow", "psutil", "sqlite3"} & set(done.stdout.split())
