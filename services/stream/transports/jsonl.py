"""Files and pipes (`-`) of lines: each line is a message, answered at least once.

A file is followed as it grows. How far a group has read it is in a small file beside it. That is
written after the answers, so that after a kill some lines are answered again, and none is lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from services.stream.base import (
    Examined,
    Guarantee,
    LinkRequest,
    Message,
    Outgoing,
    StreamConnection,
    StreamUrl,
)
from services.stream.transports.bridge import connect
from services.stream.transports.lines import Cutter, from_line, to_line

PIPE = "-"
# A line that does not end within this many bytes is no message.
LONGEST_BYTES = 64 << 20
_BLOCK = 1 << 20
_LOOK_SECONDS = 0.02
_MANY = 10_000


class LineReader:
    """A Consumer, Ending: the lines of a file or a pipe, from the descriptor `file`.

    `offset` is where it begins. Empty lines are skipped, and a file's last line counts once it
    has ended.
    """

    def __init__(self, place: StreamUrl, file: int = -1, offset: int = 0) -> None:
        self._place = place
        self._file = file
        self._next = offset
        self._cutter = Cutter()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._closed = False
        # Where the lines that poll() gave begin and end, until they are acknowledged.
        self._given: dict[int, int] = {}

    @property
    def ended(self) -> bool:
        """Whether a pipe was closed at its other end, and all of it was read."""
        return self._closed and not self._lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Leave a pipe as it is."""

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        return [Message("0", at, *from_line(line)) for at, line in self.lines(limit, wait_s)]

    def lines(self, limit: int, wait_s: float) -> list[tuple[int, bytes]]:
        """Return at most `limit` lines with their offsets; wait `wait_s` for the first one."""
        deadline = time.monotonic() + wait_s
        while len(self._lines) < limit and not self._closed:
            left = 0.0 if self._lines else deadline - time.monotonic()
            if not self._fill(max(0.0, left)) and (self._lines or left <= 0):
                break
        found = [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]
        self._given |= {at: at + len(line) + 1 for at, line in found}
        return found

    def acknowledge(self, done: Sequence[Message]) -> None:
        """Forget what is done: a pipe has no position."""
        for message in done:
            del self._given[int(message.offset)]

    def lag(self) -> Mapping[str, int]:
        return {"0": len(self._given) + len(self._lines) + self._not_read()}

    def group_lag(self) -> int:
        return self.lag()["0"]

    def _fill(self, wait_s: float) -> bool:
        """Read one block; whether there was one."""
        if not select.select([self._file], [], [], wait_s)[0]:
            return False
        block = os.read(self._file, _BLOCK)
        self._closed = not block
        self._cut(block or b"\n")
        return True

    def _not_read(self) -> int:
        """Return how many lines are there that were not read."""
        return 0

    def _cut(self, block: bytes) -> None:
        start = self._next - self._cutter.waiting
        self._next += len(block)
        for line in self._cutter.cut(block):
            if line.strip():
                self._lines.append((start, line))
            start += len(line) + 1
        if self._cutter.waiting > LONGEST_BYTES:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._place.shown()} has a line of more than {LONGEST_BYTES} bytes",
            )


class FileReader(LineReader):
    """A Consumer of a file that grows; without a `group` it only looks, from `offset` on.

    Entering raises JOB_RUNNING if another process reads the file as the same group.
    """

    def __init__(
        self, place: StreamUrl, group: str = "", start: str = "earliest", offset: int = 0
    ) -> None:
        super().__init__(place, offset=offset)
        self._path = _path(place)
        self._group = group
        self._latest = start == "latest"
        self._lock = -1
        # So much of the file was counted for the lag, and how many lines were not read of it.
        self._counted, self._ahead = offset, 0

    def __enter__(self) -> Self:
        try:
            if self._group:
                lock = self._kept.with_suffix(".lock")
                self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                _lock(self._lock, f"reads {self._path} as group {self._group!r}")
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)

    def acknowledge(self, done: Sequence[Message]) -> None:
        """Keep the position; DISK_FULL is worth another try."""
        if done:
            self._save(self._given[int(done[-1].offset)])
        super().acknowledge(done)

    @property
    def _kept(self) -> Path:
        return position_path(self._path, self._group)

    def _save(self, offset: int) -> None:
        if not self._group:
            return
        try:
            write_atomic(self._kept, b"%d %d\n" % (offset, os.fstat(self._file).st_ino))
        except OSError as error:
            raise _full(error, self._kept) from error

    def _open(self) -> bool:
        """Open the file and go to the group's position; whether the file is there."""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if self._group and (saved := read_position(self._kept)):
            self._next = self._counted = saved[0]
            self._check(saved[1])
        elif self._latest:
            self._next = self._counted = _end_of_lines(self._file)
            self._save(self._next)
        return True

    def _check(self, inode: int) -> None:
        """INVALID_INPUT if the file is not the one that was read, or shorter than what was."""
        here = os.fstat(self._file)
        if inode != here.st_ino or here.st_size < self._next:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._path} was replaced or cut since it was read",
                f"To read the new file from its beginning: rm '{self._kept}'"
                if self._group
                else "",
            )

    def _fill(self, wait_s: float) -> bool:
        if self._file < 0 and not self._open():
            time.sleep(min(wait_s, _LOOK_SECONDS))
            return False
        if block := os.pread(self._file, _BLOCK, self._next):
            self._cut(block)
            if self._counted >= self._next:
                self._ahead -= block.count(b"\n")
            return True
        if self._path.exists():  # Otherwise it was removed, or a new one is about to come.
            self._check(self._path.stat().st_ino)
        time.sleep(min(wait_s, _LOOK_SECONDS))
        return False

    def _not_read(self) -> int:
        if self._file < 0:
            return 0
        if self._counted < self._next:
            self._counted, self._ahead = self._next, 0
        while block := os.pread(self._file, _BLOCK, self._counted):
            self._ahead += block.count(b"\n")
            self._counted += len(block)
        return self._ahead


class LineProducer:
    """Appends lines to a file, which no other process of ours writes to meanwhile, or to a pipe.

    With the option `headers=yes` keys and headers stay.
    """

    def __init__(self, place: StreamUrl) -> None:
        self._place = place
        self._whole = place.options.get("headers") == "yes"

    def __enter__(self) -> Self:
        if self._place.scheme == PIPE:
            # The pipe as it is now, whatever becomes of that descriptor later.
            self._file = os.dup(int(self._place.options.get("descriptor", 1)))
            return self
        path = _path(self._place)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._file, f"writes to {path}")
        except MlctlError:
            os.close(self._file)
            raise
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._write(b"\n")  # A kill or another program left a line without its end.
        return self

    def __exit__(self, *_exc_info: object) -> None:
        os.close(self._file)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """DISK_FULL, and then nothing was appended; INTERRUPTED if the pipe has no reader."""
        if messages:
            self._write(b"".join([to_line(each, whole=self._whole) for each in messages]))

    def _write(self, content: bytes) -> None:
        view, pipe = memoryview(content), self._place.scheme == PIPE
        before = 0 if pipe else os.fstat(self._file).st_size
        try:
            while view:
                view = view[os.write(self._file, view) :]
            if not pipe:
                os.fdatasync(self._file)
        except BrokenPipeError as error:
            raise MlctlError(ErrorCode.INTERRUPTED, "nobody reads the answers any more") from error
        except OSError as error:
            if not pipe:
                os.ftruncate(self._file, before)
            raise _full(error, self._place.address) from error


class LinesTransport:
    """Pipes and files of lines."""

    def open_link(self, request: LinkRequest) -> StreamConnection:
        """A bridge: answers are written, then the position."""
        return connect(request)

    def open_consumer(self, request: LinkRequest) -> LineReader:
        if request.source.scheme == PIPE:
            return LineReader(request.source, 0)
        return FileReader(request.source, request.group, request.start)

    def open_producer(self, place: StreamUrl) -> LineProducer:
        return LineProducer(place)

    def browse(self, place: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        """The lines that are there; INVALID_INPUT for a pipe."""
        if place.scheme == PIPE:
            raise MlctlError(ErrorCode.INVALID_INPUT, "a pipe cannot be looked at")
        _need(place)
        with FileReader(place) as reader:
            skip = max(0, reader.group_lag() - last) if last is not None else 0
            while found := reader.poll(_MANY, 0.0):
                yield from found[skip:]
                skip = max(0, skip - len(found))

    def follow(self, place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
        """Lines from now on."""
        pipe = place.scheme == PIPE
        with LineReader(place, 0) if pipe else FileReader(place, start="latest") as reader:
            while not reader.ended:
                found = reader.poll(_MANY, wait_s)
                yield from found
                if not found:
                    yield None

    def examine(self, place: StreamUrl, group: str) -> Examined:
        """What is in the file, and how much of it `group` has not done."""
        if place.scheme == PIPE:
            remark = "what was read from a pipe and not answered yet is gone with the process"
            return Examined(Guarantee.AT_LEAST_ONCE, "standard streams", remarks=(remark,))
        path = _need(place)
        with FileReader(place) as reader:
            messages = lag = reader.group_lag()
        if saved := read_position(position_path(path, group)):
            with FileReader(place, offset=saved[0]) as reader:
                lag = reader.group_lag()
        return Examined(Guarantee.AT_LEAST_ONCE, "file", messages, {"0": lag})


transport = LinesTransport()


def position_path(path: Path, group: str) -> Path:
    """Where the position of `group` in the file at `path` is kept."""
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


def _path(place: StreamUrl) -> Path:
    if unknown := sorted(set(place.options) - {"headers"}):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a file of lines has no option {unknown[0]!r}",
            "The only one is: headers.",
        )
    if not place.address:
        raise MlctlError(ErrorCode.INVALID_INPUT, "file:// needs a path, as in file://rows.jsonl")
    return Path(place.address)


def _need(place: StreamUrl) -> Path:
    path = _path(place)
    if not path.is_file():
        raise MlctlError(ErrorCode.NOT_FOUND, f"there is no file {path}")
    return path


def _lock(file: int, what: str) -> None:
    """Keep other processes out until `file` is closed; JOB_RUNNING if one was first."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise MlctlError(ErrorCode.JOB_RUNNING, f"another process {what}") from error


def _end_of_lines(file: int) -> int:
    """Return the offset behind the last line that has ended."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _full(error: OSError, path: object) -> Exception:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return MlctlError(ErrorCode.DISK_FULL, f"there is no space left for {path}")
