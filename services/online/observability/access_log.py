"""The access log: one JSON line for each infer request.

The event loop makes the lines, most of which are the same for all requests of a batch; a thread
writes them. A file is opened for appending and each piece is written by one call, so that several
workers share it without mixing their lines; after logrotate moved it away it is opened anew, as
`logging.handlers.WatchedFileHandler` does.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.executor import Answer
from services.online.observability.calls import OK, RequestRecord
from services.online.observability.traceparent import TRACE_ID, is_valid, trace_id

# More than a worker answers in a second: the disk may be slow.
MAX_WAITING = 50_000

# The fields of one request, after those that it shares with others.
_IDS = b'%b,"request_id":%b,"trace_id":%b,"total_ms":%.3f'
_STAGES = b',"parse_ms":%.3f,"serialize_ms":%.3f}\n'
# An answered infer request whose ids need no escapes: one format is half of the cost.
_ANSWERED = _IDS.replace(b":%b", b':"%b"') + _STAGES


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
    """Makes the lines of requests; the observer's thread writes them with `flush`."""

    def __init__(self, output: LogOutput, model: str, digest: str) -> None:
        self._output = output
        self._model = {"model": model, "digest": digest}
        # The loop appends, the thread takes from the front: neither waits for the other.
        self._lines: list[bytes] = []
        self._excess = 0
        self._lost = 0
        # The fields that the last request shared with the one before, and their text.
        self._shared: tuple[object, ...] = ()
        self._shared_text = b""

    @property
    def dropped(self) -> int:
        """Requests that are not in the log: they came too fast, or it could not be written."""
        return self._excess + self._lost

    def answered(
        self,
        record: RequestRecord,
        at: float,
        seconds: float,
        rows: int,
        answer: Answer,
        parse: float | None,
        serialize: float | None,
        bytes_out: int | None,
    ) -> None:
        """Add the line of an answered request: `at` is the Unix time, other times are seconds."""
        ms, bytes_in = int(at * 1e3), record.bytes_in
        queue, infer = answer.queue_seconds, answer.infer_seconds
        shared = ms, queue, infer, rows, bytes_in, bytes_out, record.protocol
        if shared != self._shared:
            self._shared = shared
            fields = self._render(record, ms, OK, rows, answer.batch_rows, bytes_out)
            times = b',"queue_ms":%.3f,"infer_ms":%.3f' % (queue * 1e3, infer * 1e3)
            self._shared_text = fields + times
        name, parent = record.request_id, record.traceparent
        if (
            (name.isalnum() or name.replace(b"-", b"").isalnum())
            and (parent is not None and is_valid(parent))
            and (parse is not None and serialize is not None)
        ):
            self._add(_ANSWERED % (
                self._shared_text, name, parent[TRACE_ID],
                seconds * 1e3, parse * 1e3, serialize * 1e3,
            ))  # fmt: skip
            return
        line = _begin(self._shared_text, record, seconds)
        if parse is not None and serialize is not None:
            self._add(line + _STAGES % (parse * 1e3, serialize * 1e3))
        else:
            self._add(line + b"}\n")

    def ended(self, record: RequestRecord) -> None:
        """Add the line of a request that failed, or whose stream ended."""
        fields = self._render(record, int(record.at * 1e3), record.code, None, None, None)
        self._add(_begin(fields, record, record.seconds) + b"}\n")

    def flush(self) -> None:
        """Write the waiting lines; OSError if that fails, and these lines are lost."""
        count = len(self._lines)
        if not count:
            return
        content = b"".join(self._lines[:count])
        del self._lines[:count]
        try:
            self._output.write(content)
        except OSError:
            self._lost += count
            raise

    def close(self) -> None:
        """Close the output."""
        self._output.close()

    def _add(self, line: bytes) -> None:
        if len(self._lines) < MAX_WAITING:
            self._lines.append(line)
        else:
            self._excess += 1

    def _render(
        self,
        record: RequestRecord,
        ms: int,
        code: str,
        rows: int | None,
        batch_rows: int | None,
        bytes_out: int | None,
    ) -> bytes:
        """Return the start of a line with the fields that most requests of a batch share."""
        time = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        fields = {
            "time": f"{time}.{ms % 1000:03}Z",
            "protocol": record.protocol,
            **self._model,
            "status": record.status_of(code),
            "code": code,
            "rows": rows,
            "batch_rows": batch_rows,
            "bytes_in": record.bytes_in,
            "bytes_out": bytes_out,
        }
        return orjson.dumps(fields)[:-1]


def _begin(fields: bytes, record: RequestRecord, seconds: float) -> bytes:
    """Return `fields` and the ids of any request, escaped where they need it."""
    trace = None if record.traceparent is None else trace_id(record.traceparent)
    text = b"null" if trace is None else b'"%b"' % trace
    return _IDS % (fields, _text(record.request_id), text, seconds * 1e3)


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
