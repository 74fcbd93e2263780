"""The access log: one JSON line for each infer request, written off its path.

A file is opened for appending and each piece is written by one call, so that several workers
share it without mixing their lines; after logrotate or anyone else moved it away it is made
anew, as `logging.handlers.WatchedFileHandler` does.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson

from bundle.errors import ErrorCode, MlctlError
from services.online.observability.backlog import Backlog
from services.online.observability.calls import RequestRecord
from services.online.observability.traceparent import trace_id

# More than a worker answers in a second: the disk may be slow.
MAX_WAITING = 50_000


_START = b'{"time":"%b.%06dZ",%b,"request_id":%b,"trace_id":%b,'
_SIZES = b'"rows":%b,"batch_rows":%b,"bytes_in":%b,"bytes_out":%b,"total_ms":%.3f'
_RUN = b',"queue_ms":%.3f,"infer_ms":%.3f'
_ENDS = b',"parse_ms":%.3f,"serialize_ms":%.3f'
# A line of an answered infer request, all of which is known: one format takes half of the time.
_ANSWERED = _START + _SIZES.replace(b"%b", b"%d") + _RUN + _ENDS + b"}\n"


class LogOutput(Protocol):
    """Where lines go."""

    def write(self, lines: bytes) -> None:
        """Write whole lines; OSError if they cannot be."""

    def close(self) -> None:
        """Let go of it."""


class _Lines:
    """Writes lines to a descriptor, and ends the one of which a full disk took only a part."""

    def __init__(self) -> None:
        self._torn = False

    def write(self, descriptor: int, lines: bytes) -> None:
        content = memoryview(b"\n" + lines if self._torn else lines)
        written = 0
        try:
            while written < len(content):
                written += os.write(descriptor, content[written:])
        finally:
            if written:
                self._torn = content[written - 1] != ord("\n")


class StandardOutput:
    """The process's own output (1) or error output (2)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = _Lines()

    def write(self, lines: bytes) -> None:
        self._lines.write(self._descriptor, lines)

    def close(self) -> None:
        """It is not ours to close."""


class AppendedFile:
    """A file that is appended to, and made anew when it is no more at its path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = self._open()
        self._lines = _Lines()

    def write(self, lines: bytes) -> None:
        if self._was_moved():
            descriptor = self._open()
            os.close(self._descriptor)
            self._descriptor = descriptor
            self._lines = _Lines()
        self._lines.write(self._descriptor, lines)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _was_moved(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self._descriptor))


class AccessLog:
    """Takes requests that are done with `put`; the observer's thread writes them with `flush`."""

    def __init__(self, output: LogOutput, model: str, digest: str) -> None:
        self._output = output
        self._model = {"model": model, "digest": digest}
        self._waiting = Backlog[RequestRecord](MAX_WAITING)
        self.put = self._waiting.put
        self._lost = 0
        self._outcomes: dict[tuple[str, str, int | None], bytes] = {}
        self._second = -1
        self._second_text = b""

    @property
    def dropped(self) -> int:
        """Requests that are not in the log: they came too fast, or it could not be written."""
        return self._waiting.dropped + self._lost

    def flush(self) -> None:
        """Write what was noted; OSError if that fails, and these lines are lost."""
        found = self._waiting.take()
        if not found:
            return
        try:
            self._output.write(b"".join(map(self._line, found)))
        except OSError:
            self._lost += len(found)
            raise

    def close(self) -> None:
        """Let go of the output."""
        self._output.close()

    def _line(self, record: RequestRecord) -> bytes:
        """Return one line of JSON; a general encoder takes several times as long."""
        key = (record.protocol, record.code, record.reported_status)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._render_outcome(record)
        at = record.at
        second = int(at)
        if second != self._second:
            self._second = second
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second_text = text.encode()
        name, trace, parent = record.request_id, b"null", record.traceparent
        name = b'"%b"' % name if name.isalnum() else _text(name)
        if parent is not None and (found := trace_id(parent)) is not None:
            trace = b'"%b"' % found
        start = self._second_text, (at - second) * 1e6, outcome, name, trace
        total, queue, infer = record.seconds * 1e3, record.queue, record.infer
        parse, serialize = record.parse, record.serialize
        sizes = record.rows, record.batch_rows, record.bytes_in, record.bytes_out
        if None in sizes or queue is None or infer is None or parse is None or serialize is None:
            line = _START % start + _SIZES % (*map(_number, sizes), total)
            if queue is not None and infer is not None:
                line += _RUN % (queue * 1e3, infer * 1e3)
            if parse is not None and serialize is not None:
                line += _ENDS % (parse * 1e3, serialize * 1e3)
            return line + b"}\n"
        return _ANSWERED % (
            *start, *sizes, total, queue * 1e3, infer * 1e3, parse * 1e3, serialize * 1e3
        )  # fmt: skip

    def _render_outcome(self, record: RequestRecord) -> bytes:
        """Return the part that is the same in all lines of a protocol and code."""
        fields = {"protocol": record.protocol, **self._model}
        return orjson.dumps({**fields, "status": record.status, "code": record.code})[1:-1]


def _number(value: int | None) -> bytes:
    return b"null" if value is None else b"%d" % value


def _text(value: bytes) -> bytes:
    """Return a JSON string; line ends are escaped in it, so that a line stays one."""
    return orjson.dumps(value.decode("latin-1"))


def open_output(name: str) -> LogOutput:
    """`stdout`, `stderr` or a file; INVALID_INPUT if that cannot be written."""
    if name in ("stdout", "stderr"):
        return StandardOutput(getattr(sys, f"__{name}__").fileno())
    try:
        return AppendedFile(Path(name))
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"MLCTL_ACCESS_LOG: {name} cannot be written: {error.strerror}",
            "Set it to a file in a folder that the server may write, to stdout, or to off.",
        ) from error
