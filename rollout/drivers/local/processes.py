"""Detached processes that outlive their starter and are never mistaken for others.

A process is identified by pid, start time and a token in its environment. A recycled pid has
another start time; a child that survived its parent still carries the token. Only what
matches is ever signalled. Each process leads its own session, so Ctrl-C does not reach it.

While a process executes its program the kernel shows neither arguments nor environment of it; a
search waits for that moment to pass instead of missing the process.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import psutil

from mlctl.rollout.domain.process_ref import ProcessRef

TOKEN_VARIABLE = "MLCTL_PROCESS"  # noqa: S105 - a name, not a secret
_START_TOLERANCE = 1.0  # create times move a little when the wall clock is adjusted
_EXEC_SECONDS = 5.0  # a program on a file system that hangs is not waited for any longer
_EXEC_POLL_SECONDS = 0.001
_TAIL_BYTES = 8192
_START_LINE = re.compile(r"^mlctl: [-0-9]{10} [:0-9]{8} start: .*\n?", re.MULTILINE)


def process_role(directory: Path, role: str) -> str:
    """Return the name under which a deployment's process is found again; unique per directory."""
    return f"{directory}:{role}"


def spawn(
    role: str, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> ProcessRef:
    """Start `argv` in its own session with output appended to `log`.

    `role` names what it is for; `strays(role)` finds it again even if its pid was not kept.
    """
    token = f"{role}#{uuid.uuid4().hex}"
    variables = {**os.environ, **(environment or {}), TOKEN_VARIABLE: token}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        variables,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
    )
    return ProcessRef(pid, psutil.Process(pid).create_time(), token)


def alive(ref: ProcessRef) -> bool:
    """Whether the process itself still runs; a zombie does not. Reaps it if it is our child."""
    _reap(ref.pid)
    return _leader(ref) is not None


def wait_for_end(refs: Iterable[ProcessRef], seconds: float) -> bool:
    """Wait until one of the processes, all alive a moment ago, ends; return whether one did.

    They need not be children of this process.
    """
    with ExitStack() as stack:
        poll = select.poll()
        for ref in refs:
            try:
                descriptor = os.pidfd_open(ref.pid)
            except ProcessLookupError:
                return True
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(1000.0 * seconds))


def terminate(ref: ProcessRef) -> None:
    """Send SIGTERM to the process; nothing if it is gone."""
    leader = _leader(ref)
    if leader is not None:
        _signal(leader, signal.SIGTERM)


def kill(ref: ProcessRef) -> None:
    """SIGKILL the process and every process that it started and that carries its token."""
    for process in members(ref.token):
        _signal(process, signal.SIGKILL)
    _reap(ref.pid)


def members(token: str) -> Iterator[psutil.Process]:
    """The running processes that carry `token`."""
    return _matching(lambda found: found == token)


def strays(role: str) -> Iterator[psutil.Process]:
    """The running processes that were spawned for `role` or a replica of it ("ROLE/0").

    Also those that the journal does not remember.
    """
    return _matching(lambda found: found.startswith((f"{role}#", f"{role}/")))


def end_strays(role: str) -> None:
    """SIGKILL every process that was spawned for `role` or a replica of it."""
    for process in strays(role):
        _signal(process, signal.SIGKILL)


def note(log: Path, text: str) -> None:
    """Append a line of our own to a log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"mlctl: {datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}\n")


def log_start(log: Path, text: str) -> None:
    """Append the line that separates a new process's output from that of the ones before it."""
    note(log, f"start: {text}")


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log since its last `log_start`, or a remark if there are none.

    A log is kept over the starts of its role, so older lines may be another Bento's.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return "(no log was written)"
    own = _START_LINE.split(text)[-1]
    return "\n".join(own.splitlines()[-lines:]) or "(the process wrote nothing)"


def _leader(ref: ProcessRef) -> psutil.Process | None:
    try:
        process = psutil.Process(ref.pid)
        same = abs(process.create_time() - ref.started) < _START_TOLERANCE
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _matching(matches: Callable[[str], bool]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            token = _token(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # another user's, or just gone
            continue
        if token and matches(token):
            yield process


def _token(process: psutil.Process) -> str:
    """Return the token in the environment of a process, or an empty text."""
    deadline = time.monotonic() + _EXEC_SECONDS
    while not (environment := process.environ()) and _executes(process):
        if time.monotonic() > deadline:
            break
        time.sleep(_EXEC_POLL_SECONDS)
    return environment.get(TOKEN_VARIABLE, "")


def _executes(process: psutil.Process) -> bool:
    """Whether it is inside `exec`: a program without arguments. A kernel thread has no program."""
    return not process.cmdline() and bool(process.exe())


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
