"""Whom a run may end to take its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.stream.handover import take_over
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
        take_over(run.pid, PATIENCE_SECONDS)
        assert run.wait(PATIENCE_SECONDS) < 0
        take_over(run.pid, PATIENCE_SECONDS)  # There is none any more.


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
