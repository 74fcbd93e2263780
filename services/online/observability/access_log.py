"""The access log: one JSON line for each infer request, written off its path.

The event loop notes the values of a request; a thread makes the lines of many at a time, most
fields of which are the same for all requests of a batch. A file is opened for appending and each
piece is written by one call, so that several workers share it without mixing their lines; after
logrotate moved it away it is opened anew, as `logging.handlers.WatchedFileHandler` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson

from bundle.errors import ErrorCode, MlctlError
from services.online.observability.calls import RequestRecord, status_of
from services.online.observability.traceparent import TRACE_ID, is_valid, trace_id

# More than a worker answers in a second: the disk may be slow.
MAX_WAITING = 50_000

_LINE = b'%b,"request_id":%b,"trace_id":%b,"total_ms":%.3f}\n'
# A line of ids that need no escapes.
_PLAIN_LINE = _LINE.replace(b":%b", b':"%b"')
# What most requests of a batch have in common: protocol, code, a status that is not the code's, the
# seconds in the queue and in the model, rows, rows of the batch, bytes in, bytes out. These are
# tuples without names, as each request makes one.
SharedFields = tuple[
    str, str, int | None, float | None, float | None, int | None, int | None, int | None, int | None
]
# One request: its end as Unix time, its seconds, X-Request-Id, traceparent, and the shared fields.
LogEntry = tuple[float, float, bytes, bytes | None, SharedFields]


def entry_of(record: RequestRecord) -> LogEntry:
    """Return what the log says of an ended request."""
    shared = (
        record.protocol, record.code, record.reported_status, record.queue, record.infer,
        record.rows, record.batch_rows, record.bytes_in, record.bytes_out,
    )  # fmt: skip
    return record.at, record.seconds, record.request_id, record.traceparent, shared


class LogOutput(Protocol):
    """A destination of lines."""

    def write(self, lines: bytes) -> None:
        """Write whole lines; OSError if that fails."""

    def close(self) -> None:
        """Close it."""


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
        """Do nothing: the process owns it."""


class AppendedFile:
    """A file that is appended to, and opened anew when it was moved away from its path."""

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
    """Notes ended requests; the observer's thread writes their lines with `flush`."""

    def __init__(self, output: LogOutput, model: str, digest: str) -> None:
        self._output = output
        self._model = {"model": model, "digest": digest}
        # The loop appends, the thread takes from the front: neither waits for the other.
        self._waiting: list[LogEntry] = []
        self._excess = 0
        self._lost = 0

    @property
    def dropped(self) -> int:
        """Requests that are not in the log: they came too fast, or it could not be written."""
        return self._excess + self._lost

    def put(self, entry: LogEntry) -> None:
        """Note an ended request."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._excess += 1

    def flush(self) -> None:
        """Write the lines of the requests; OSError if that fails, and these lines are lost."""
        entries = self._waiting[:]
        if not entries:
            return
        del self._waiting[: len(entries)]
        try:
            self._output.write(b"".join(self._lines(entries)))
        except OSError:
            self._lost += len(entries)
            raise

    def close(self) -> None:
        """Close the output."""
        self._output.close()

    def _lines(self, entries: list[LogEntry]) -> Iterator[bytes]:
        """Yield one line of JSON for each entry; a general encoder takes several times as long."""
        start, end, last, fields = 0.0, 0.0, None, b""
        for at, seconds, name, parent, shared in entries:
            if shared != last or not start <= at < end:
                ms, last = int(at * 1e3), shared
                start, end, fields = ms / 1e3, (ms + 1) / 1e3, self._render(ms, shared)
            if parent is not None and name.isalnum() and is_valid(parent):
                yield _PLAIN_LINE % (fields, name, parent[TRACE_ID], seconds * 1e3)
                continue
            trace = None if parent is None else trace_id(parent)
            text = b"null" if trace is None else b'"%b"' % trace
            yield _LINE % (fields, _text(name), text, seconds * 1e3)

    def _render(self, ms: int, shared: SharedFields) -> bytes:
        """Return the start of lines: a Unix time in milliseconds, and the shared fields."""
        protocol, code, status, queue, infer, rows, batch_rows, bytes_in, bytes_out = shared
        time = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        fields = {
            "time": f"{time}.{ms % 1000:03}Z",
            "protocol": protocol,
            **self._model,
            "status": status or status_of(protocol, code),
            "code": code,
            "rows": rows,
            "batch_rows": batch_rows,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
        }
        text = orjson.dumps(fields)[:-1]
        if queue is None or infer is None:
            return text
        return text + b',"queue_ms":%.3f,"infer_ms":%.3f' % (queue * 1e3, infer * 1e3)


def _text(value: bytes) -> bytes:
    """Return a JSON string; line ends are escaped in it, so that a line stays one."""
    return orjson.dumps(value.decode("latin-1"))


def open_output(name: str) -> LogOutput:
    """Return the output `stdout`, `stderr` or a file; INVALID_INPUT if that cannot be written."""
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
