"""What a command costs: seconds, its whole tree's CPU, and its peak memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

_PERIOD = 0.05
_LONGEST = 300.0


@dataclass(frozen=True, slots=True)
class CommandCost:
    """Of a command and all that it started; memory without what processes share."""

    seconds: float
    cpu_seconds: float
    mebibytes: float


@dataclass(slots=True)
class _Tree:
    """The newest CPU times of each process, and the peak memory of all together in bytes."""

    root: psutil.Process
    cpu: dict[tuple[int, float], float] = field(default_factory=dict)
    peak_bytes: int = 0

    def sample(self) -> None:
        now = 0
        try:
            processes = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                times = process.cpu_times()
                self.cpu[process.pid, process.create_time()] = times.user + times.system
                memory = process.memory_info()
                now += memory.rss - memory.shared if process is not self.root else memory.rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        self.peak_bytes = max(self.peak_bytes, now)

    def kill(self) -> None:
        for process in [*self.root.children(recursive=True), self.root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandCost:
    """Run `command` to its end; SystemExit with what it said if it fails, or takes five minutes.

    The root's CPU is what the system counted, with the children that it waited for; that of
    others is the last that was seen of them.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        tree = _Tree(psutil.Process(process.pid))
        done = 0
        while not done:
            tree.sample()
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if not done:
                time.sleep(_PERIOD)
            if time.perf_counter() - start > _LONGEST:
                tree.kill()
                raise SystemExit(f"{' '.join(command)}: it does not end")
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.stdout is not None
        if process.returncode:
            raise SystemExit(f"{command[0]}: {process.stdout.read().decode()[-2000:]}")
    own = usage.ru_utime + usage.ru_stime
    return CommandCost(seconds, max(own, sum(tree.cpu.values())), tree.peak_bytes / 2**20)
