"""Run TensorRT in a worker process, because it can crash or block the process that uses it.

The worker (`services.runtime.engine_worker`) reads one request from stdin and writes one line of
JSON: a `result`, `rejected` or `unavailable`. A worker that ends without one has crashed.
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
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal

from bundle.clock import Clock, SystemClock
from services.runtime.tensorrt.profile import Profile

# TensorRT for desktop GPUs: the same importer and builder, but it builds without a GPU.
LIBRARY = "tensorrt_rtx"
_TAIL_BYTES = 2000

Command = Literal["build", "warm"]


class Cause(StrEnum):
    """Why a worker has no result: TensorRT rejects the model, cannot be loaded, crashed the
    process, or exceeded the time limit."""

    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"


class WorkerError(Exception):
    """The worker has no result; `reason` is TensorRT's own text if there is one."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """The engine's size, and the version of the TensorRT-RTX that built it."""

    engine_bytes: int
    version: str


def build_engine(model: Path, profile: Profile, timeout_s: float) -> EngineBuild:
    """Build an engine of the ONNX file `model` with TensorRT-RTX and discard it.

    A check that needs no GPU; WorkerError if the build fails.
    """
    request = {
        "library": LIBRARY,
        "model": str(model.absolute()),
        "profile": {
            name: [shapes.minimum, shapes.optimum, shapes.maximum]
            for name, shapes in profile.items()
        },
    }
    return EngineBuild(**run_worker("build", request, timeout_s))


def run_worker(
    command: Command,
    request: Mapping[str, Any],
    timeout_s: float,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Return the worker's result for `request`; WorkerError if there is none after `timeout_s`."""
    clock = clock or SystemClock()
    with tempfile.TemporaryFile() as log, _worker(command, request, log) as process:
        for line in _lines(process, clock, clock.monotonic() + timeout_s, timeout_s):
            message = json.loads(line)
            match message.pop("event"):
                case Cause.REJECTED | Cause.UNAVAILABLE as cause:
                    raise WorkerError(Cause(cause), message["reason"])
                case "result":
                    return dict(message)
        raise WorkerError(Cause.CRASHED, _exit_reason(process.wait(), log))


@contextlib.contextmanager
def _worker(
    command: Command, request: Mapping[str, Any], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker and send `request`; its whole process group is gone when the block ends."""
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
            # A worker that died already is noticed by its missing answer.
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
    """Yield whole lines of the worker's stdout until it closes; WorkerError at the deadline."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                raise WorkerError(Cause.TIMED_OUT, f"it did not finish within {timeout_s:g} s")
            if not selector.select(remaining):
                continue
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *whole, pending = (pending + chunk).split(b"\n")
            yield from whole


def _exit_reason(code: int, log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    last = f": {lines[-1]}" if lines else ""
    return f"its process died {how}{last}"
