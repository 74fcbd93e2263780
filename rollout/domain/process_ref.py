"""The identity of a process, as the journal keeps it."""

from __future__ import annotations

from dataclasses import dataclass

NO_PROCESS = (1 << 22) + 1  # beyond every pid: runs on another machine, is never signalled


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """The identity of a process that was started by `spawn`."""

    pid: int
    started: float
    token: str
