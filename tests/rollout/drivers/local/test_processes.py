from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.drivers.local import processes
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

SLEEP = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"]
_PARENT = """
import subprocess, sys
print("started", flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
"""
PARENT = [sys.executable, "-c", _PARENT]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    processes.end_strays(str(tmp_path))


def start(log: Path, argv: list[str]) -> ProcessRef:
    ref = processes.spawn(str(log.parent), argv, log)
    wait_until(lambda: "started" in processes.log_tail(log))
    return ref


def gone(ref: ProcessRef) -> bool:
    """Whether neither the process nor anything that it started is left."""
    return not processes.alive(ref) and next(processes.members(ref.token), None) is None


def test_terminate__running_process__ends_its_session(log: Path) -> None:
    ref = start(log, SLEEP)
    assert processes.alive(ref)
    assert os.getsid(ref.pid) == ref.pid
    processes.terminate(ref)
    wait_until(lambda: not processes.alive(ref))
    processes.terminate(ref)  # again: nothing happens
    assert gone(ref)


def test_alive__recycled_pid__is_false(log: Path) -> None:
    ref = start(log, SLEEP)
    other = replace(ref, started=ref.started - 100.0)
    assert not processes.alive(other)
    processes.terminate(other)
    assert processes.alive(ref)


def test_kill__parent_is_dead__reaches_its_children(log: Path) -> None:
    ref = start(log, PARENT)
    wait_until(lambda: len(list(processes.members(ref.token))) == 2)
    os.kill(ref.pid, 9)
    wait_until(lambda: not processes.alive(ref))
    assert not gone(ref)
    processes.kill(ref)
    wait_until(lambda: gone(ref))


def test_wait_for_end__one_process_of_several_killed__returns_at_once(log: Path) -> None:
    stays, ends = start(log, SLEEP), start(log, SLEEP)
    assert not processes.wait_for_end((stays, ends), 0.05)
    os.kill(ends.pid, signal.SIGKILL)
    begun = time.monotonic()
    assert processes.wait_for_end((stays, ends), 30.0)
    assert not processes.alive(ends)
    assert processes.wait_for_end((stays, ends), 30.0)  # its PID is free
    assert time.monotonic() - begun < 20.0


def test_strays__unrecorded_process__is_found_by_its_role(log: Path) -> None:
    ref = start(log, SLEEP)
    assert [process.pid for process in processes.strays(str(log.parent))] == [ref.pid]
    assert list(processes.strays(str(log.parent)[:-1])) == []
    processes.end_strays(str(log.parent))
    wait_until(lambda: gone(ref))


def test_spawn__missing_program__raises(log: Path) -> None:
    with pytest.raises(FileNotFoundError):
        processes.spawn("role", ["/no/such/program"], log)


def test_log_tail__no_empty_or_long_log__is_its_end(log: Path) -> None:
    assert processes.log_tail(log) == "(no log was written)"
    log.touch()
    assert processes.log_tail(log) == "(the process wrote nothing)"
    log.write_text("\n".join(str(number) for number in range(50)))
    assert processes.log_tail(log, lines=2) == "48\n49"


def test_log_tail__several_starts__only_lines_of_the_last_process(log: Path) -> None:
    for number in (1, 2):
        processes.log_start(log, f"tiny:{number} as green/0")
        with log.open("a") as file:
            file.write(f"Traceback of {number}\nstart: of {number}\n")
    assert processes.log_tail(log) == "Traceback of 2\nstart: of 2"
    processes.log_start(log, "tiny:3 as green/0")
    assert processes.log_tail(log) == "(the process wrote nothing)"


def test_members__process_that_was_just_spawned__is_found(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        ref = processes.spawn(str(log.parent), ["/bin/sleep", "60"], log)
        only = [psutil.Process(ref.pid)]
        monkeypatch.setattr(psutil, "process_iter", lambda only=only: iter(only))
        assert [found.pid for found in processes.members(ref.token)] == [ref.pid]
        processes.kill(ref)


def test_members__kernel_thread_or_process_without_environment__is_not_waited_for(
    log: Path,
) -> None:
    bare = processes.spawn(str(log.parent), ["/usr/bin/env", "-i", "/bin/sleep", "60"], log)
    wait_until(lambda: psutil.Process(bare.pid).environ() == {})
    begun = time.monotonic()
    assert list(processes.members(bare.token)) == []
    assert time.monotonic() - begun < processes._EXEC_SECONDS
    os.kill(bare.pid, signal.SIGKILL)
    wait_until(lambda: not processes.alive(bare))
