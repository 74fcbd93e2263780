"""Files and pipes of lines, answered at least once: `file://rows.jsonl`, or `-` for a pipe.

A line is a message's value. To keep key and headers, a line is an envelope:
`{"mlctl":{"key":..., "headers":[[name, value]...]},"value":...}`, where bytes that are not UTF-8
are `{"base64":...}`, and null stays null.

A file is followed as it grows. The position of a group is a small file beside it, written after
the answers: after a kill some lines are answered again, and none is lost.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import mmap
import os
import re
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

import orjson

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import NO_SPACE, write_atomic
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    Message,
    Outgoing,
    StreamConnection,
    StreamStatus,
    StreamUrl,
    Transport,
)

PIPE = "-"
# A line that does not end within this many bytes is not a message.
MAX_LINE_BYTES = 64 << 20
_ENVELOPE = b'{"mlctl":'
_BLOCK = 1 << 20
_SLEEP_SECONDS = 0.02
_PAGE = 10_000


def to_line(message: Outgoing, *, envelope: bool) -> bytes:
    """Return the line of a message with its line break."""
    value, content = message.value, message.content
    if not (envelope or b"\n" in content or content.startswith(_ENVELOPE)) and content.strip():
        return content + b"\n"
    about: dict[str, Any] = {}
    if message.key is not None:
        about["key"] = _to_json(message.key)
    if message.headers:
        about["headers"] = [[name, _to_json(each)] for name, each in message.headers]
    return orjson.dumps({"mlctl": about, "value": _to_json(value)}) + b"\n"


def from_line(line: bytes) -> Outgoing:
    """Return the message of a line without its line break; an invalid envelope is a value."""
    if not line.startswith(_ENVELOPE):
        return Outgoing(line)
    try:
        document = orjson.loads(line)
        about = document["mlctl"]
        return Outgoing(
            _from_json(document["value"]),
            _from_json(about.get("key")),
            tuple((str(name), _from_json(each)) for name, each in about.get("headers", ())),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return Outgoing(line)


def _to_json(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _from_json(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error


class LineReader:
    """Reads lines from the descriptor `file`, whose next byte is at `offset`.

    Empty lines are skipped. With `follow` more may be appended, and the last line counts once it
    has its line break; otherwise the lines end with the file or pipe.
    """

    def __init__(self, file: int, offset: int = 0, *, follow: bool = False) -> None:
        self._file = file
        self.offset = offset
        self._follow = follow
        self._closed = False
        self._lines: deque[tuple[int, bytes]] = deque()
        # The beginning of a line whose end was not read yet.
        self._tail = bytearray()
        # Line breaks that were read, and that exist up to the offset `_counted`.
        self._read = self._existing = 0
        self._counted = offset

    @property
    def ended(self) -> bool:
        """True once every line was returned, and no other can follow."""
        return self._closed and not self._lines

    def read(self, limit: int, wait_s: float) -> list[tuple[int, bytes]]:
        """Return up to `limit` lines with their offsets; wait `wait_s` for the first one."""
        deadline = time.monotonic() + wait_s
        while len(self._lines) < limit and not self._closed:
            left = 0.0 if self._lines else max(0.0, deadline - time.monotonic())
            if block := self._next_block(left):
                self._split(block)
            elif self._lines or left <= 0:
                break
        return [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]

    def remaining(self) -> int:
        """Return the number of lines that were not returned; of a pipe only those in memory."""
        if not self._follow:
            return len(self._lines)
        while block := os.pread(self._file, _BLOCK, self._counted):
            self._existing += block.count(b"\n")
            self._counted += len(block)
        return self._existing - self._read + len(self._lines)

    def _next_block(self, wait_s: float) -> bytes:
        """Return a block of bytes, empty if none came within `wait_s` seconds."""
        if not select.select([self._file], [], [], wait_s)[0]:
            return b""
        if block := os.read(self._file, _BLOCK):
            return block
        if self._follow:
            time.sleep(min(wait_s, _SLEEP_SECONDS))
            return b""
        self._closed = True
        return b"\n"

    def _split(self, block: bytes) -> None:
        self.offset += len(block)
        self._tail += block
        end = self._tail.rfind(b"\n", len(self._tail) - len(block))
        if end >= 0:
            start = self.offset - len(self._tail)
            lines = bytes(self._tail[:end]).split(b"\n")
            del self._tail[: end + 1]
            self._read += len(lines)
            for line in lines:
                if line.strip():
                    self._lines.append((start, line))
                start += len(line) + 1
        if len(self._tail) > MAX_LINE_BYTES:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"a line is longer than {MAX_LINE_BYTES:,} bytes"
            )


class PipeConnection(StreamConnection):
    """Reads standard input; a message that was read and not answered is lost with the process."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self) -> None:
        self._reader = LineReader(0)
        # Offsets of the lines that poll() returned, with the ends of the lines, until committed.
        self._delivered: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Leave the pipe as it is."""

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        if not limit:
            return []
        found = self._reader.read(limit, wait_s)
        self._delivered |= {at: at + len(line) + 1 for at, line in found}
        return [Message("0", at, *from_line(line)) for at, line in found]

    def commit(self, batch: Commit) -> None:
        for message in batch.done:
            del self._delivered[int(message.offset)]

    def lag(self) -> Mapping[str, int]:
        return {"0": self.group_lag()}

    def group_lag(self) -> int:
        return len(self._delivered) + self._reader.remaining()


class FileConnection(PipeConnection):
    """Reads a file for a group.

    Entering raises NOT_FOUND without the file, and JOB_RUNNING if another process reads it for the
    same group.
    """

    def __init__(self, request: ConnectionRequest) -> None:
        super().__init__()
        self._path = _path(request.source)
        self._latest = request.start == "latest"
        self._position = position_path(self._path, request.group)
        self._file = self._lock = -1

    def __enter__(self) -> Self:
        self._file = _open_existing(self._path)
        try:
            lock = self._position.with_suffix(".lock")
            self._lock = _open_locked(lock, 0, f"reads {self._path} for the same group")
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        found = super().poll(limit, wait_s)
        if not found and limit and self._path.exists():  # Another file may be about to replace it.
            self._check(self._path.stat().st_ino)
        return found

    def commit(self, batch: Commit) -> None:
        """Store the position; DISK_FULL may be repeated."""
        if batch.done:
            self._save(self._delivered[int(batch.done[-1].offset)])
        super().commit(batch)

    def _begin(self) -> None:
        """Begin at the group's position."""
        saved = read_position(self._position)
        offset = saved[0] if saved else _end_of_lines(self._file) if self._latest else 0
        os.lseek(self._file, offset, os.SEEK_SET)
        self._reader = LineReader(self._file, offset, follow=True)
        if saved:
            self._check(saved[1])
        elif self._latest:
            self._save(offset)

    def _check(self, inode: int) -> None:
        """INVALID_INPUT if `inode` is another file, or the file is shorter than what was read."""
        status = os.fstat(self._file)
        if inode != status.st_ino or status.st_size < self._reader.offset:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._path} was replaced or truncated since it was read",
                f"To read the new file from its beginning: rm '{self._position}'",
            )

    def _save(self, offset: int) -> None:
        try:
            write_atomic(self._position, b"%d %d\n" % (offset, os.fstat(self._file).st_ino))
        except OSError as error:
            raise _disk_full(error, self._position) from error


class LineProducer:
    """Appends lines to a file, which one process may write to at a time, or to a pipe.

    With the option `headers=yes` lines are envelopes. A pipe is standard output, or the open
    `descriptor` that the option of that name says.
    """

    def __init__(self, url: StreamUrl) -> None:
        self._url = url
        self._pipe = url.scheme == PIPE
        self._envelope = url.options.get("headers") == "yes"

    def __enter__(self) -> Self:
        if self._pipe:
            self._file = os.dup(int(self._url.options.get("descriptor", 1)))
            return self
        path = _path(self._url)
        if not path.parent.is_dir():
            raise MlctlError(
                ErrorCode.NOT_FOUND,
                f"there is no folder {path.parent}",
                f"Create it: mkdir -p '{path.parent}'",
            )
        self._file = _open_locked(path, os.O_APPEND, f"writes to {path}")
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._write(b"\n")  # A kill or another program left a line without its line break.
        return self

    def __exit__(self, *_exc_info: object) -> None:
        os.close(self._file)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Append messages. DISK_FULL: nothing was appended; INTERRUPTED: the pipe was closed."""
        if messages:
            self._write(b"".join([to_line(each, envelope=self._envelope) for each in messages]))

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        before = 0 if self._pipe else os.fstat(self._file).st_size
        try:
            while view:
                view = view[os.write(self._file, view) :]
            if not self._pipe:
                os.fdatasync(self._file)
        except BrokenPipeError as error:
            raise MlctlError(
                ErrorCode.INTERRUPTED, "the reader of the answers closed the pipe"
            ) from error
        except OSError as error:
            if not self._pipe:
                os.ftruncate(self._file, before)
            raise _disk_full(error, self._url.address) from error


class LinesTransport(Transport):
    """Pipes and files of lines."""

    def open_connection(self, request: ConnectionRequest) -> PipeConnection:
        """Return a reader; a bridge writes answers, since no commit can cover two files."""
        return PipeConnection() if request.source.scheme == PIPE else FileConnection(request)

    def open_producer(self, url: StreamUrl) -> LineProducer:
        return LineProducer(url)

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        with _existing(url) as file:
            reader = LineReader(file, follow=True)
            pages = iter(lambda: reader.read(_PAGE, 0.0), [])
            lines = chain.from_iterable(pages)
            for at, line in lines if last is None else deque(lines, last):
                yield Message("0", at, *from_line(line))

    def status(self, url: StreamUrl, group: str) -> StreamStatus:
        if url.scheme == PIPE:
            remark = "messages that were read from a pipe and not answered are lost after a kill"
            return StreamStatus(Guarantee.AT_LEAST_ONCE, "standard streams", remarks=(remark,))
        with _existing(url) as file:
            messages = LineReader(file, follow=True).remaining()
            saved = read_position(position_path(_path(url), group))
            lag = LineReader(file, saved[0] if saved else 0, follow=True).remaining()
        return StreamStatus(Guarantee.AT_LEAST_ONCE, "file", messages, {"0": lag})


transport = LinesTransport()


def position_path(path: Path, group: str) -> Path:
    """Return the path of the position of `group` in the file at `path`."""
    return path.with_name(f"{path.name}.{re.sub(r'[^A-Za-z0-9_-]', '_', group)}.offset")


def read_position(path: Path) -> tuple[int, int] | None:
    """Return offset and inode; None if there is no position. INVALID_INPUT for another file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    found = re.fullmatch(rb"(\d+) (\d+)\n", content)
    if found is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{path} is not a position",
            f"To read the file from its beginning: rm '{path}'",
        )
    return int(found[1]), int(found[2])


def _path(url: StreamUrl) -> Path:
    url.check_options({"headers"})
    if not url.address:
        raise MlctlError(ErrorCode.INVALID_INPUT, "file:// needs a path, as in file://rows.jsonl")
    return Path(url.address)


@contextmanager
def _existing(url: StreamUrl) -> Iterator[int]:
    """Open a file; INVALID_INPUT for a pipe, NOT_FOUND."""
    if url.scheme == PIPE:
        raise MlctlError(ErrorCode.INVALID_INPUT, "a pipe cannot be inspected")
    file = _open_existing(_path(url))
    try:
        yield file
    finally:
        os.close(file)


def _open_existing(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"there is no file {path}",
            f"To run before it is written: touch '{path}'",
        ) from error


def _end_of_lines(file: int) -> int:
    """Return the offset after the last line break of a file."""
    if not os.fstat(file).st_size:
        return 0
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
        return content.rfind(b"\n") + 1


def _open_locked(path: Path, flags: int, action: str) -> int:
    """Open a file, which is created, and lock it; JOB_RUNNING if another process locked it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise MlctlError(ErrorCode.JOB_RUNNING, f"another process {action}") from error
    return file


def _disk_full(error: OSError, path: object) -> Exception:
    if error.errno not in NO_SPACE:
        return error
    return MlctlError(ErrorCode.DISK_FULL, f"no space is left for {path}")
