"""Interrupts at the worst moment leave no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mlctl.loadtest.runs import Protocols
from mlctl.loadtest.server import deferred_signals, serving
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("interruptible")
def test_serving__interrupt_during_the_start__leaves_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        """Raises the signal when the process runs and its object is not yet assigned."""

        def __init__(self, _command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the end comes while it is entered
            with serving("tiny", Protocols.HTTP):
                pytest.fail("nothing is served")
        (process,) = started
        assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGTERM
    finally:
        for each in started:
            each.kill()


@pytest.mark.usefixtures("interruptible")
def test_deferred_signals__signal_within_the_block__arrives_at_its_end() -> None:
    reached: list[int] = []

    def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append(1)

    with pytest.raises(KeyboardInterrupt), deferred_signals():
        step()
    assert reached
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
