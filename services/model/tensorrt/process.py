"""Run TensorRT in a worker process, because it can crash or block the process that uses it.

The worker (`mlctl.services.model.engine_worker`) reads one request from stdin and writes one
line of JSON: a `result`, `rejected` or `unavailable`. A worker that ends without one has crashed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal

from mlctl.core.child_process import describe_exit
from mlctl.services.model.tensorrt.profile import Profile

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


def run_worker(command: Command, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the worker's result for `request`; WorkerError if there is none after `timeout_s`."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "mlctl.services.model.engine_worker",
                command,
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        ) as process,
    ):
        try:
            answer, _ = process.communicate(json.dumps(request).encode(), timeout_s)
        except subprocess.TimeoutExpired:
            reason = f"it did not finish within {timeout_s:g} s"
            raise WorkerError(Cause.TIMED_OUT, reason) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if not answer.endswith(b"\n"):
            raise WorkerError(Cause.CRASHED, _exit_reason(process.returncode, log))
    message = json.loads(answer)
    match message.pop("event"):
        case Cause.REJECTED | Cause.UNAVAILABLE as cause:
            raise WorkerError(Cause(cause), message["reason"])
    return dict(message)


def _exit_reason(code: int, log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"its process died {describe_exit(code)}{last}"
