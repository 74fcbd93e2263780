"""Child processes that end with their parent, and words for how a process ended."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Signals that a fault of native code ends a process with, and the kernel's when memory runs out.
_CRASHES = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE),
        *(signal.SIGTRAP, signal.SIGSYS, signal.SIGKILL),
    }
)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Return how a process ended, such as "of SIGSEGV"; `code` is negative for a signal."""
    if code >= 0:
        return f"with exit code {code}"
    memory = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"of {signal.Signals(-code).name}{memory}"


def is_crash(code: int) -> bool:
    """Whether a fault, and not a request to stop, ended a process with this exit code."""
    return -code in _CRASHES
