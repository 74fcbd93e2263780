"""The logs of a deployment: kept within bounds, read back, followed.

A process keeps its log open, so a log that is too large is copied and then truncated in place:
the writer appends, and continues at the new end. Only what is written between the copy and the
truncation is lost.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal

MAX_BYTES = 10 << 20
KEPT = 3
_SUFFIX = ".log"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log of `role`, without its end."""

    role: str
    text: str


def directory_of(name: str) -> Path:
    """Where the deployment `name`, up or down, logs; DEPLOYMENT_NOT_FOUND."""
    with Journal(paths.journal()) as journal:
        return paths.directory(journal.deployment(name).name) / "logs"


def path(directory: Path, role: str) -> Path:
    """The log of a role ("blue/0", "envoy", "daemon") under a deployment's log directory."""
    return directory / f"{role.replace('/', '-')}{_SUFFIX}"


def rotate(directory: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
    """Move the content of every log over `max_bytes` to NAME.log.1, and keep `kept` such files."""
    for log in directory.glob(f"*{_SUFFIX}"):
        if log.stat().st_size > max_bytes:
            _rotate(log, kept)


def _rotate(log: Path, kept: int) -> None:
    for number in range(kept - 1, 0, -1):
        older = _numbered(log, number)
        if older.exists():
            older.replace(_numbered(log, number + 1))
    shutil.copyfile(log, _numbered(log, 1))
    with log.open("r+b") as file:
        file.truncate(0)


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def roles(directory: Path, selected: str | None = None) -> tuple[str, ...]:
    """The roles that have a log, or those that `selected` names: "blue" is all of blue's replicas.

    NOT_FOUND, with those that exist, if none does.
    """
    found = sorted(_role(log) for log in directory.glob(f"*{_SUFFIX}"))
    named = [
        role for role in found if selected is None or role.split("/")[0] == selected.split("/")[0]
    ]
    if selected is not None and "/" in selected:
        named = [role for role in named if role == selected]
    if selected is not None and not named:
        names = ", ".join(found) or "none"
        raise MlctlError(
            ErrorCode.NOT_FOUND, f"there is no log of {selected!r}", f"There are: {names}."
        )
    return tuple(named)


def _role(log: Path) -> str:
    slot, dash, index = log.name.removesuffix(_SUFFIX).rpartition("-")
    return f"{slot}/{index}" if dash and index.isdigit() else log.name.removesuffix(_SUFFIX)


def tail(directory: Path, role: str, count: int) -> list[LogLine]:
    """The last `count` lines of a log; those before its last rotation too, if it has fewer."""
    lines: deque[str] = deque(maxlen=count)
    log = path(directory, role)
    for file in (_numbered(log, 1), log):
        if file.exists():
            with file.open(encoding="utf-8", errors="replace") as text:
                lines.extend(line.rstrip("\n") for line in text)
    return [LogLine(role, line) for line in lines]


class Follower:
    """What is appended to some logs from now on, or from the start of those that appear later."""

    def __init__(self, directory: Path, roles: Callable[[], tuple[str, ...]]) -> None:
        self._directory = directory
        self._roles = roles
        self._read = {role: path(directory, role).stat().st_size for role in roles()}
        self._partial: dict[str, str] = {}

    def read(self) -> Iterator[LogLine]:
        """The whole lines that came since the last call; one that is being written waits."""
        for role in self._roles():
            log = path(self._directory, role)
            size, start = log.stat().st_size, self._read.get(role, 0)
            with log.open("rb") as file:
                file.seek(start if start <= size else 0)  # else it was rotated
                text = file.read().decode("utf-8", "replace")
                self._read[role] = file.tell()
            *whole, rest = (self._partial.get(role, "") + text).split("\n")
            self._partial[role] = rest
            yield from (LogLine(role, line) for line in whole)
