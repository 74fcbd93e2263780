"""The processes of a deployment in the journal: role and identity."""

from __future__ import annotations

from dataclasses import dataclass

# The roles of a deployment's processes beside its replicas ("blue/0").
DAEMON = "daemon"
PROXY = "proxy"
ACTIVATOR = "activator"
NO_PROCESS = (1 << 22) + 1  # beyond every pid: runs on another machine, is never signalled


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """The identity of a process that was started by `spawn`."""

    pid: int
    started: float
    token: str
