"""The access log: one JSON line for each infer request, written off its path.

The event loop makes the lines, once for each of its ticks; a thread writes those of many ticks at a
time. A file is opened for appending and each
piece is written by one call, so that several workers share it without mixing their lines; after
logrotate moved it away it is opened anew, as `logging.handlers.WatchedFileHandler` does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import orjson

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.observability.calls import RequestRecord, status_of
from mlctl.services.online.observability.traceparent import plain_trace_ids, trace_id

# More than a worker answers in a second: the disk may be slow.
MAX_WAITING = 50_000

# Between the fields of two requests in a list; it cannot be in a string, where quotes are escaped.
_NEXT = b'},{"rows"'
# What most requests of a batch have in common: protocol, code, a status that is not the code's, the
# seconds in the queue and in the model, and the rows of the batch. A tuple without names, as each
# request makes one.
SharedFields = tuple[str, str, int | None, float | None, float | None, int | None]
# An answered request: the fields above, its rows, id, traceparent and client, when it began and
# ended, by `perf_counter`, and the bytes in and out.
LoggedAnswer = tuple[SharedFields, int, bytes, bytes | None, str, float, float, int, int]


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

    The lines of answers are made at the end of the loop's tick, with few calls for all of them:
    most answers of a tick are of one batch.
    """

    def __init__(self, output: LogOutput, model: str, digest: str) -> None:
        self._output = output
        self._model = {"model": model, "digest": digest}
        self._answers: list[LoggedAnswer] = []
        # The loop appends lines, the thread takes from the front: neither waits for the other. Nor
        # do they share a counter.
        self._waiting: list[bytes] = []
        self._made = self._taken = 0
        self._excess = 0
        self._lost = 0
        # The start of the last line, and what it was made of.
        self._start = b""
        self._shared: SharedFields | None = None
        self._ms = 0
        self._second = 0
        self._moment = ""

    @property
    def dropped(self) -> int:
        """Requests that are not in the log: they came too fast, or it could not be written."""
        return self._excess + self._lost

    def answered(self, answer: LoggedAnswer) -> None:
        """Log an answered request."""
        if not self._answers:
            asyncio.get_running_loop().call_soon(self.end_tick)
        self._answers.append(answer)

    def ended(self, record: RequestRecord) -> None:
        """Log a request that has ended, answered or not."""
        self.end_tick()
        shared = (
            record.protocol, record.code, record.reported_status, record.queue, record.infer,
            record.batch_rows,
        )  # fmt: skip
        fields = {
            "rows": record.rows,
            "request_id": record.request_id.decode("latin-1"),
            "trace_id": _trace_ids([record.traceparent])[0],
            "client": record.client or None,
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
            "total_ms": 1e6 * record.seconds // 1 / 1e3,
        }
        self._put(_lines(self._start_of(record.at, shared), [fields]), 1)

    def end_tick(self) -> None:
        """Make the lines of the answers of this tick."""
        answers, self._answers = self._answers, []
        at = time.time()
        for shared, group in groupby(answers, itemgetter(0)):
            run = list(group)
            # An id has visible characters alone. One call for all takes less time than many.
            ids = b"\n".join([each[2] for each in run]).decode("latin-1").split("\n")
            traces = _trace_ids([each[3] for each in run])
            fields = [
                {
                    "rows": rows,
                    "request_id": name,
                    "trace_id": trace,
                    "client": client or None,
                    "bytes_in": bytes_in,
                    "bytes_out": bytes_out,
                    "total_ms": 1e6 * (ended - began) // 1 / 1e3,
                }
                for (_, rows, _, _, client, began, ended, bytes_in, bytes_out), name, trace in zip(
                    run, ids, traces, strict=True
                )
            ]
            self._put(_lines(self._start_of(at, shared), fields), len(run))

    def flush(self) -> None:
        """Write the lines; OSError if that fails, and these lines are lost."""
        pieces = self._waiting[:]
        if not pieces:
            return
        del self._waiting[: len(pieces)]
        lines = b"".join(pieces)
        count = lines.count(b"\n")
        self._taken += count
        try:
            self._output.write(lines)
        except OSError:
            self._lost += count
            raise

    def close(self) -> None:
        """Close the output."""
        self._output.close()

    def _put(self, lines: bytes, count: int) -> None:
        if self._made - self._taken + count > MAX_WAITING:
            self._excess += count
            return
        self._made += count
        self._waiting.append(lines)

    def _start_of(self, at: float, shared: SharedFields) -> bytes:
        """Return the start of lines: the Unix time in milliseconds, and the shared fields."""
        ms = int(at * 1e3)
        if shared == self._shared and ms == self._ms:
            return self._start
        protocol, code, status, queue, infer, batch_rows = shared
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
            "batch_rows": batch_rows,
        }
        start = orjson.dumps(fields)[:-1]
        if queue is not None and infer is not None:
            start += b',"queue_ms":%.3f,"infer_ms":%.3f' % (queue * 1e3, infer * 1e3)
        self._start, self._shared, self._ms = start, shared, ms
        return start


def _trace_ids(traceparents: Sequence[bytes | None]) -> Sequence[str | None]:
    """Return the trace id in each header, None where it is missing or not valid."""
    plain = plain_trace_ids(traceparents)
    if plain is not None:
        return plain
    return [None if header is None else trace_id(header) for header in traceparents]


def _lines(start: bytes, requests: Sequence[Mapping[str, str | float | None]]) -> bytes:
    """Return a line for each of the requests; all lines begin with `start`."""
    listed = orjson.dumps(requests)[2:-2]
    return b"%b,%b}\n" % (start, listed.replace(_NEXT, b'}\n%b,"rows"' % start))


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
