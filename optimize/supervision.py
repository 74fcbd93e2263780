"""Optimize in a child process, so that a crash of native code costs one variant and not the run.

Converters, ONNX Runtime and TensorRT run native code on graphs of others, which can end or block
the process. The child sends every event to its parent. If a crash ends the child in a recipe's
step, or that step stands still, the parent starts another child: it rejects that variant, and takes
everything that is finished from the cache.

The child is a fork of a process that has loaded and started nothing yet, so it costs no time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mlctl.core.child_process import describe_exit, end_with_parent, is_crash
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.events import ProgressListener, Stage, StepEvent, StepStatus

# TensorRT alone may take an hour for an engine.
STEP_SECONDS = 7200.0
_TICK_SECONDS = 1.0
_PIPE_BYTES = 1 << 16
_FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_OPEN = frozenset({StepStatus.STARTED, StepStatus.WORKING})


@dataclass(frozen=True, slots=True)
class Child:
    """What this process knows of its parent: the recipes that crashed, and where events go."""

    crashed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    events: int | None = None

    def watched(self, progress: ProgressListener) -> ProgressListener:
        """Return a listener that also sends every event to the parent."""
        return progress if self.events is None else _Sender(progress, self.events)


@dataclass(frozen=True, slots=True)
class _Sender:
    progress: ProgressListener
    events: int

    def event(self, event: StepEvent) -> None:
        step = [event.stage, event.recipe if event.status in _OPEN else None]
        os.write(self.events, json.dumps(step).encode() + b"\n")
        self.progress.event(event)


_child = Child()


def this_process() -> Child:
    """Return what this process knows of its parent; nothing if it was not supervised."""
    return _child


def run_in_child(note: Callable[[str], None], step_seconds: float = STEP_SECONDS) -> None:
    """Return in a child process; this process waits for it, and exits as the child does.

    Call it before threads are started. `note` gets a sentence for each variant that crashed. A
    crash outside a recipe's step raises UNSUPPORTED_MODEL if the source's graph was at fault,
    else INTERNAL.
    """
    global _child  # noqa: PLW0603 - what a fork knows is a fact of the process
    crashed: dict[str, str] = {}
    signals = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while True:
        reader, writer = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            end_with_parent(parent)
            os.close(reader)
            _child = Child(MappingProxyType(crashed), writer)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        os.close(writer)
        os.set_blocking(reader, False)
        watch = _Watch(pid, reader, step_seconds)
        code = watch.wait()
        os.close(reader)
        if code >= 0:
            sys.exit(code)
        if not is_crash(code):
            _end_by(signal.Signals(-code), before)
        reason = watch.reason(code)
        if watch.recipe is None:
            raise _crash_error(watch.stage, reason)
        crashed[watch.recipe] = reason
        note(f"  {watch.recipe}: {reason}; continuing without it")


@dataclass(slots=True)
class _Watch:
    """The parent's view of one child: its last event, and when that came."""

    pid: int
    events: int
    step_seconds: float
    stage: Stage | None = None
    recipe: str | None = None
    _unread: bytes = b""
    _since: float = field(default_factory=time.monotonic)
    _hung: bool = False

    def wait(self) -> int:
        """Return the child's exit code, negative for a signal; kill it if a recipe hangs."""
        while True:
            found = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, _TICK_SECONDS)
            # The terminal sends its signals to the child, too.
            if found and found.si_signo in _FORWARDED and found.si_code <= 0:
                os.kill(self.pid, found.si_signo)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._read()
            if ended:
                return os.waitstatus_to_exitcode(status)
            if self.recipe and time.monotonic() - self._since > self.step_seconds:
                self._hung = True
                os.kill(self.pid, signal.SIGKILL)

    def reason(self, code: int) -> str:
        """Return why the child has no result."""
        if self._hung:
            return f"its process stood still for {self.step_seconds:g} s"
        return f"its process died {describe_exit(code)}"

    def _read(self) -> None:
        try:
            while chunk := os.read(self.events, _PIPE_BYTES):
                self._unread += chunk
        except BlockingIOError:
            pass  # all that was sent is read
        *lines, self._unread = self._unread.split(b"\n")
        if lines:
            stage, self.recipe = json.loads(lines[-1])
            self.stage, self._since = Stage(stage), time.monotonic()


def _crash_error(stage: Stage | None, reason: str) -> MlctlError:
    if stage is Stage.EXPORT:
        return MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"the source model cannot be exported and run: {reason}",
            "ONNX Runtime, or the library that exports the model, crashes on its graph. Export it "
            "with another opset, or check the values given with --constant.",
        )
    return MlctlError(
        ErrorCode.INTERNAL,
        f"in the step {stage or 'start'}: {reason}",
        "Finished work is cached: run the same command again to continue.",
    )


def _end_by(number: signal.Signals, mask: set[Any]) -> None:
    """End this process by the signal that ended its child."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
