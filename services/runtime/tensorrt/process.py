"""Running TensorRT in a process of its own, since it can end, or hang, the one it runs in.

The worker reads one request from stdin and answers with one line of JSON: a `result`, `refused`
or `unavailable`. A worker that ends without one has crashed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import IO, Any, Literal

from bundle.clock import Clock, SystemClock

_TAIL_BYTES = 2000

Command = Literal["build", "warm"]


class Cause(StrEnum):
    """Why a worker gave no result: the model is refused, or TensorRT is not to be had,
    ended its process, or took too long."""

    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"


class WorkerError(Exception):
    """The worker gave no result; `reason` is TensorRT's own where it gave one."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


def run_worker(
    command: Command,
    request: Mapping[str, Any],
    timeout_s: float,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """The worker's result for `request`. WorkerError if it refuses, crashes or runs out of time."""
    clock = clock or SystemClock()
    with tempfile.TemporaryFile() as log, _worker(command, request, log) as process:
        for line in _lines(process, clock, clock.monotonic() + timeout_s, timeout_s):
            message = json.loads(line)
            match message.pop("event"):
                case Cause.REFUSED | Cause.UNAVAILABLE as cause:
                    raise WorkerError(Cause(cause), message["reason"])
                case "result":
                    return dict(message)
        raise WorkerError(Cause.CRASHED, _death(process.wait(), log))


@contextlib.contextmanager
def _worker(
    command: Command, request: Mapping[str, Any], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with its request sent; its whole group is gone when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "services.runtime.engine_worker", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        try:
            # One that died already is found out by what it does not answer.
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(json.dumps(request).encode())
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lines(
    process: subprocess.Popen[bytes], clock: Clock, deadline: float, timeout_s: float
) -> Iterator[bytes]:
    """Whole lines of the worker's stdout until it closes; WorkerError at the deadline."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            left = deadline - clock.monotonic()
            if left <= 0:
                raise WorkerError(Cause.TIMED_OUT, f"it was not finished after {timeout_s:g} s")
            if not selector.select(left):
                continue
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *whole, pending = (pending + chunk).split(b"\n")
            yield from whole


def _death(code: int, log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    last = f": {lines[-1]}" if lines else ""
    return f"its process died {how}{last}"
