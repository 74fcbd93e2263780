"""HAProxy's socket: commands with answers, and the stream of told answers."""

from __future__ import annotations

import socket
from pathlib import Path

from rollout.planes.haproxy_config import RING
from rollout.ports import PlaneUnavailable

_TIMEOUT = 2.0
_CHUNK = 1 << 18
# Below HAProxy's own buffer, which holds one line of commands.
_LONGEST_LINE = 8000


def ask(path: Path, *commands: str) -> str:
    """The answers to `commands`, one after the other; PlaneUnavailable if there is none."""
    answers = []
    for line in _lines(commands):
        try:
            with _connected(path) as connection:
                connection.sendall(line.encode() + b"\n")
                answers.append(_rest(connection))
        except OSError as error:
            raise PlaneUnavailable(f"HAProxy's socket: {error.strerror or error}") from error
    return "".join(answers)


class Stream:
    """What the ring is told from now on, read without waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._left = b""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._left = b""

    def begin(self) -> None:
        """Listen from here on; what was told before is lost."""
        self.close()
        try:
            self._connection = _connected(self._path)
            self._connection.sendall(f"show events {RING} -w -n\n".encode())
            self._connection.setblocking(False)
        except OSError as error:
            self.close()
            raise PlaneUnavailable(f"HAProxy's socket: {error.strerror or error}") from error

    def lines(self) -> list[str] | None:
        """Whole lines that came since the last call; None if it has not begun or has ended."""
        if self._connection is None:
            return None
        found = [self._left]
        while True:
            try:
                part = self._connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            if not part:
                self.close()
                return None
            found.append(part)
        *whole, self._left = b"".join(found).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT)
    try:
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _rest(connection: socket.socket) -> str:
    parts = []
    while part := connection.recv(_CHUNK):
        parts.append(part)
    return b"".join(parts).decode()


def _lines(commands: tuple[str, ...]) -> list[str]:
    """The commands joined to as few lines as HAProxy can take."""
    lines: list[str] = []
    for command in commands:
        if lines and len(lines[-1]) + len(command) < _LONGEST_LINE:
            lines[-1] += f";{command}"
        else:
            lines.append(command)
    return lines
