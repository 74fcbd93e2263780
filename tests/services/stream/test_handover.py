"""Whom a run may end to take its place."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import LinkRequest, Place
from services.stream.engine import RunSettings
from services.stream.events import Event, Phase
from services.stream.handover import take_over
from services.stream.payloads import PayloadRequest
from services.stream.run import Wanted, run_stream
from tests.support.bundles import make_bundle
from tests.support.wait import PATIENCE_SECONDS

_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
_POLITE = "print(flush=True); input()"


@contextmanager
def process(code: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-S", "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"\n"
        try:
            yield started
        finally:
            started.kill()


def test_a_run_is_ended_and_waited_for() -> None:
    with process(_POLITE, "stream", "run") as run:
        assert take_over(run.pid, PATIENCE_SECONDS)
        assert run.wait(PATIENCE_SECONDS) < 0
        assert not take_over(run.pid, PATIENCE_SECONDS)  # There is none any more.


def test_what_is_no_run_is_left_alone() -> None:
    with process(_POLITE, "stream", "send") as other:
        with pytest.raises(MlctlError) as refused:
            take_over(other.pid, PATIENCE_SECONDS)
        assert refused.value.code is ErrorCode.INVALID_INPUT
        assert other.poll() is None


def test_a_run_that_does_not_end_is_told() -> None:
    with process(_DEAF, "stream", "run") as run:
        with pytest.raises(MlctlError) as refused:
            take_over(run.pid, 0.05)
        assert refused.value.code is ErrorCode.JOB_RUNNING
        assert run.poll() is None


def test_a_run_that_finds_none_says_so_and_goes_on(tmp_path: Path) -> None:
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text())  # the first number that is none
    source = Place.parse(f"sqlite://{tmp_path}/events.db#in")
    link = LinkRequest(source, "g", source.named("out"), source.named("dead"))
    wanted = Wanted(link, PayloadRequest(), RunSettings(until_empty=True), take_over=nobody)
    events: list[Event] = []
    bundle = make_bundle(tmp_path / "tiny")
    assert run_stream(bundle, wanted, events.append, threading.Event()).complete
    assert (events[0].phase, events[1].phase) == (Phase.HANDOVER, Phase.STARTED)
    assert events[0].detail == f"there was no process {nobody} to end"
