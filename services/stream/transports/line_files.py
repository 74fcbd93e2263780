"""Files of lines: one that grows and is read, and one that is written."""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from services.stream.transports.line_ledger import Append, Entry, Mark
from services.stream.transports.lines import Cutter

_BLOCK = 1 << 20
# A line that does not end within this many bytes is no message.
LONGEST_BYTES = 64 << 20
_HEAD = 256


class Tail:
    """Reads the lines of a file that grows. Only those that have ended; empty ones are skipped.

    With `anew` a file that was replaced or cut is read from its beginning once the old one is
    at its end; without it that is INVALID_INPUT.
    """

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self._path = path
        self._anew = anew
        self._turn = 0
        self._file = -1
        self._next = 0
        self._cutter = Cutter()
        self._lines: deque[tuple[int, int, bytes]] = deque()
        self._counted = 0
        self._ahead = 0

    def end_mark(self) -> Mark:
        """The mark by which everything that is there now is done."""
        if not self._reopen():
            return Mark()
        return self.mark(0, _last_line(self._file))

    def open(self, mark: Mark | None = None) -> None:
        """Go on after `mark`, or begin at the beginning; waits for no file."""
        self.close()
        self._turn = mark.turn if mark else 0
        if not self._reopen():
            return
        if mark is not None and self.mark(mark.turn, mark.offset, mark.known).head != mark.head:
            self._replaced()
        elif mark is not None and mark.offset >= 0:
            self._seek(mark.offset)
            self._skip_line()

    def close(self) -> None:
        """Read no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def mark(self, turn: int, offset: int, known: int | None = None) -> Mark:
        """The mark of a line that is done."""
        if turn != self._turn:  # the file it was in is gone: no other will be taken for it
            return Mark(turn, offset, 1, -1)
        size = os.fstat(self._file).st_size if self._file >= 0 else 0
        if known is None:
            known = min(_HEAD, size)
        elif known > size:
            return Mark(turn, offset, known, -1)
        head = zlib.crc32(os.pread(self._file, known, 0)) if known else 0
        return Mark(turn, offset, known, head)

    def read(self, limit: int) -> list[tuple[int, int, bytes]]:
        """At most `limit` lines that are there now: turn, offset and content of each."""
        while len(self._lines) < limit and self._fill():
            pass
        lines = self._lines
        return [lines.popleft() for _ in range(min(limit, len(lines)))]

    def ahead(self) -> int:
        """How many lines are there that were not read."""
        if self._file < 0:
            return len(self._lines)
        if self._counted < self._next:
            self._counted, self._ahead = self._next, 0
        while block := os.pread(self._file, _BLOCK, self._counted):
            self._ahead += block.count(b"\n")
            self._counted += len(block)
        return self._ahead + len(self._lines)

    def _fill(self) -> bool:
        """Read one block; whether there was one."""
        if self._file < 0 and not self._reopen():
            return False
        block = os.pread(self._file, _BLOCK, self._next)
        if not block:
            return self._turned()
        start = self._next - self._cutter.waiting
        self._next += len(block)
        lines = self._cutter.cut(block)
        if self._counted >= self._next:
            self._ahead -= len(lines)
        for line in lines:
            if line.strip():
                self._lines.append((self._turn, start, line))
            start += len(line) + 1
        if self._cutter.waiting > LONGEST_BYTES:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._path} has a line of more than {LONGEST_BYTES} bytes",
            )
        return True

    def _turned(self) -> bool:
        """Whether another file is there to be read."""
        here = os.fstat(self._file)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # between the old and the new one, or gone for good
        if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            if here.st_size >= self._next:
                return False
        elif here.st_size > self._next:
            return True  # something came after the last look
        self._replaced()
        return True

    def _replaced(self) -> None:
        if not self._anew:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self._path} was replaced or cut since it was read",
                "Add ?rotated=anew to the place to read the new file from its beginning.",
            )
        rest = self._cutter.rest()
        if rest.strip():  # nobody will end this line any more
            self._lines.append((self._turn, self._next - len(rest), rest))
        self.close()
        self._turn += 1
        self._reopen()

    def _reopen(self) -> bool:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        self._seek(0)
        return True

    def _seek(self, offset: int) -> None:
        self._next = self._counted = offset
        self._cutter, self._ahead = Cutter(), 0

    def _skip_line(self) -> None:
        while block := os.pread(self._file, _BLOCK, self._next):
            end = block.find(b"\n")
            self._seek(self._next + (len(block) if end < 0 else end + 1))
            if end >= 0:
                return


class Output:
    """A file that lines are appended to; nobody else of ours writes to it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise MlctlError(ErrorCode.JOB_RUNNING, f"another process writes to {path}") from error

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Let others write."""
        os.close(self._file)

    def end_line(self) -> None:
        """End a line that another program left without its end."""
        size = self.size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self.append(b"\n")

    def append(self, content: bytes) -> None:
        """Durable once it returns; if it cannot be, nothing was appended."""
        before, view = self.size, memoryview(content)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise MlctlError(
                ErrorCode.DISK_FULL, f"there is no space left for {self.path}"
            ) from error

    def has(self, append: Append) -> bool:
        """Whether `append` is there, all of it."""
        content = os.pread(self._file, append.length, append.before)
        return len(content) == append.length and zlib.crc32(content) == append.check

    def undo(self, append: Append) -> None:
        """Take away what is there of `append`; INVALID_INPUT if others wrote after it."""
        if self.size > append.before + append.length:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self.path} was written by another program after a run that was killed",
                "Remove the last lines of that run and its ledger, or use another --group.",
            )
        if self.size > append.before:
            os.ftruncate(self._file, append.before)
            os.fsync(self._file)


def settled(entry: Entry, outputs: Sequence[Output]) -> Mark:
    """The mark that is true of `outputs` after a kill, and what was half written is gone."""
    known = {str(each.path.resolve()): each for each in outputs}
    appends = [(known[name], each) for name, each in entry.appends.items() if name in known]
    if entry.then is not None and len(appends) == len(entry.appends):
        if all(output.has(each) for output, each in appends):
            return entry.then
        for output, each in appends:
            output.undo(each)
    return entry.mark


def _last_line(file: int) -> int:
    """Where the last line that has ended begins; -1 if there is none."""
    end = _newline_before(file, os.fstat(file).st_size)
    return -1 if end < 0 else _newline_before(file, end) + 1


def _newline_before(file: int, end: int) -> int:
    """Where the last newline before `end` is; -1 if there is none."""
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1
