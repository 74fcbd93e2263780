from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.rollout.domain.interfaces import ProcessState, RunningRevision
from mlctl.rollout.domain.spec import Endpoint, Slot
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.drivers.local.launcher import LocalLauncher
from tests.support.rollouts import quick_settings, revision
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    (tmp_path / "logs").mkdir()
    launcher = LocalLauncher(tmp_path / "logs", quick_settings())
    yield launcher
    launcher.close()
    for slot in Slot:
        processes.end_strays(f"{tmp_path}:{slot}")


def started(launcher: LocalLauncher, tag: str) -> RunningRevision:
    return launcher.start(Slot.BLUE, revision(tag))


def test_probe__digest_is_served__is_ready(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(served) is ProcessState.READY)
    launcher.stop(served)
    wait_until(lambda: launcher.probe(served) is ProcessState.DEAD)


def test_probe__another_digest_or_name__is_wrong_model(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(served) is ProcessState.READY)
    other = replace(served, revision=revision("tiny:bb"), process=served.process)
    wrong = LocalLauncher(Path(served.log).parent, quick_settings())
    wait_until(lambda: wrong.probe(other) is ProcessState.WRONG_MODEL)
    named = replace(served, revision=replace(served.revision, bento="other:aa"))
    wait_until(lambda: wrong.probe(named) is ProcessState.WRONG_MODEL)
    wrong.close()


def test_probe__server_never_ready__is_starting(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa?ready=never")
    wait_until(lambda: "start: tiny:aa" in Path(served.log).read_text())
    assert launcher.probe(served) is ProcessState.STARTING


def test_probe__server_does_not_answer__returns_at_once(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.rollout.drivers.local.launcher._PROBE_TIMEOUT", PATIENCE_SECONDS)
    patient = LocalLauncher(tmp_path, quick_settings())
    served = started(launcher, "tiny:aa?ready=never")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        loading = replace(served, endpoint=Endpoint(silent.getsockname()[1], 1))
        begun = time.monotonic()
        assert patient.probe(loading) is ProcessState.STARTING
        assert patient.probe(loading) is ProcessState.STARTING
        assert time.monotonic() - begun < PATIENCE_SECONDS / 2
    patient.close()


def test_probe__server_crashed__is_dead_with_a_log(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa?ready=crash")
    wait_until(lambda: launcher.probe(served) is ProcessState.DEAD)
    assert "told to crash" in processes.log_tail(Path(served.log))
    again = started(launcher, "tiny:bb?ready=never")
    assert again.log == served.log
    assert "told to crash" not in processes.log_tail(Path(again.log))


def test_start__again__ends_the_earlier_process(launcher: LocalLauncher) -> None:
    first = started(launcher, "tiny:aa")
    second = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(first) is ProcessState.DEAD)
    assert launcher.probe(second) is not ProcessState.DEAD
