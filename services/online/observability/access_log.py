"""The access log: one JSON line for each infer request, written off its path.

The event loop makes the lines, most fields of which are the same for all requests of a batch; a
thread writes those of many requests at a time. A file is opened for appending and each
piece is written by one call, so that several workers share it without mixing their lines; after
logrotate moved it away it is opened anew, as `logging.handlers.WatchedFileHandler` does.
"""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Protocol

import orjson

from bundle.errors import ErrorCode, MlctlError
from services.online.batching.executor import Answer
from services.online.observability.calls import OK, RequestRecord, status_of
from services.online.observability.traceparent import TRACE_ID, is_valid, trace_id

# More than a worker answers in a second: the disk may be slow.
MAX_WAITING = 50_000
# Lines of one batch have the same time for so long.
_SAME_TIME_SECONDS = 0.001

# What differs between the requests of a batch, after what they have in common.
_REST = b',"request_id":"%b","trace_id":"%b","bytes_in":%d,"bytes_out":%d,"total_ms":%.3f}\n'
_PLAIN_ID = re.compile(rb"[ !#-\[\]-~]*")
# What most requests of a batch have in common: protocol, code, a status that is not the code's, the
# seconds in the queue and in the model, rows, and rows of the batch. A tuple without names, as each
# request makes one.
SharedFields = tuple[str, str, int | None, float | None, float | None, int | None, int | None]


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
    """Makes a line for each ended request; the observer's thread writes them with `flush`.

    A line is made at once: its values are in the CPU's caches then, and it is one object where
    they are many.
    """

    def __init__(self, output: LogOutput, model: str, digest: str) -> None:
        self._output = output
        self._model = {"model": model, "digest": digest}
        # Two pieces for each line, the first of which many lines share: less memory is written. The
        # loop appends, the thread takes from the front: neither waits for the other.
        self._waiting: list[bytes] = []
        self._excess = 0
        self._lost = 0
        # The start of the last line with its Unix time, which the next one may share until the time
        # `_until` of `perf_counter`.
        self._shared: SharedFields | None = None
        self._batch: tuple[float, float, int, str] | None = None
        self._ms = 0
        self._second = 0
        self._moment = ""
        self._until = 0.0
        self._start = b""
        self._is_full = False

    @property
    def dropped(self) -> int:
        """Requests that are not in the log: they came too fast, or it could not be written."""
        return self._excess + self._lost

    def answered(
        self,
        protocol: str,
        request_id: bytes,
        traceparent: bytes | None,
        started: float,
        bytes_in: int,
        bytes_out: int,
        rows: int,
        answer: Answer,
    ) -> None:
        """Log an answered request that ends now and began at `started`, of `perf_counter`."""
        ended = perf_counter()
        _, queue, infer, batch_rows, _, _ = answer
        if (queue, infer, rows, protocol) != self._batch or ended >= self._until:
            self._begin_lines(time.time(), (protocol, OK, None, queue, infer, rows, batch_rows))
            self._batch = queue, infer, rows, protocol
            self._until = ended + _SAME_TIME_SECONDS
        if self._is_full:
            self._excess += 1
            return
        trace = None
        if traceparent is not None and is_valid(traceparent):
            trace = traceparent[TRACE_ID]
        if trace is None or not (request_id.isalnum() or _PLAIN_ID.fullmatch(request_id)):
            rest = _rest(request_id, trace, ended - started, bytes_in, bytes_out)
        else:
            rest = _REST % (request_id, trace, bytes_in, bytes_out, (ended - started) * 1e3)
        self._waiting += (self._start, rest)

    def ended(self, record: RequestRecord) -> None:
        """Log a request that has ended, answered or not."""
        shared = (
            record.protocol, record.code, record.reported_status, record.queue, record.infer,
            record.rows, record.batch_rows,
        )  # fmt: skip
        if shared != self._shared or int(record.at * 1e3) != self._ms:
            self._begin_lines(record.at, shared)
            self._until = 0.0
        if len(self._waiting) >= 2 * MAX_WAITING:
            self._excess += 1
            return
        trace = None if record.traceparent is None else trace_id(record.traceparent)
        sizes = record.bytes_in, record.bytes_out
        rest = _rest(record.request_id, trace, record.seconds, *sizes)
        self._waiting += (self._start, rest)

    def flush(self) -> None:
        """Write the lines; OSError if that fails, and these lines are lost."""
        pieces = self._waiting[:]
        if not pieces:
            return
        del self._waiting[: len(pieces)]
        try:
            self._output.write(b"".join(pieces))
        except OSError:
            self._lost += len(pieces) // 2
            raise

    def close(self) -> None:
        """Close the output."""
        self._output.close()

    def _begin_lines(self, at: float, shared: SharedFields) -> None:
        """Make the start of lines: the Unix time in milliseconds, and the shared fields."""
        protocol, code, status, queue, infer, rows, batch_rows = shared
        ms = int(at * 1e3)
        if ms // 1000 != self._second:
            self._second = ms // 1000
            moment = datetime.fromtimestamp(self._second, UTC)
            self._moment = moment.strftime("%Y-%m-%dT%H:%M:%S")
        fields = {
            "time": f"{self._moment}.{ms % 1000:03}Z",
            "protocol": protocol,
            **self._model,
            "status": status or status_of(protocol, code),
            "code": code,
            "rows": rows,
            "batch_rows": batch_rows,
        }
        start = orjson.dumps(fields)[:-1]
        if queue is not None and infer is not None:
            start += b',"queue_ms":%.3f,"infer_ms":%.3f' % (queue * 1e3, infer * 1e3)
        self._start, self._shared, self._batch, self._ms = start, shared, None, ms
        self._is_full = len(self._waiting) >= 2 * MAX_WAITING


def _rest(
    request_id: bytes,
    trace: bytes | None,
    seconds: float,
    bytes_in: int | None,
    bytes_out: int | None,
) -> bytes:
    """Return the rest of a line with any values; line ends are escaped, so that it stays one."""
    fields = {
        "request_id": request_id.decode("latin-1"),
        "trace_id": None if trace is None else trace.decode(),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "total_ms": round(seconds * 1e3, 3),
    }
    return b",%b\n" % orjson.dumps(fields)[1:]


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
