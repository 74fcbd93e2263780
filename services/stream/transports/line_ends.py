"""The two ends of a stream of lines: what is read, from a file or a pipe, and what is written."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Outgoing
from services.stream.transports.line_files import LONGEST_BYTES, Output, Tail
from services.stream.transports.lines import Cutter, to_line

_BLOCK = 1 << 20
_LOOK_SECONDS = 0.02


class FileLines:
    """The lines of a file, looked for again and again."""

    ended = False

    def __init__(self, tail: Tail) -> None:
        self.tail = tail

    def read(self, limit: int, wait_s: float) -> list[tuple[int, int, bytes]]:
        end = time.monotonic() + wait_s
        while not (found := self.tail.read(limit)):
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _LOOK_SECONDS))
        return found

    def ahead(self) -> int:
        return self.tail.ahead()

    def close(self) -> None:
        self.tail.close()


class PipeLines:
    """The lines of a pipe: what was read is nowhere else any more."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._cutter = Cutter()
        self._offset = 0
        self._lines: list[tuple[int, int, bytes]] = []
        self._closed = False

    @property
    def ended(self) -> bool:
        return self._closed and not self._lines

    def read(self, limit: int, wait_s: float) -> list[tuple[int, int, bytes]]:
        end = time.monotonic() + wait_s
        while not self._closed and len(self._lines) < limit:
            wait = 0.0 if self._lines else max(0.0, end - time.monotonic())
            if not select.select([self._file], [], [], wait)[0]:
                break
            self._fill()
        found, self._lines = self._lines[:limit], self._lines[limit:]
        return found

    def ahead(self) -> int:
        return len(self._lines)

    def close(self) -> None:
        pass

    def _fill(self) -> None:
        block = os.read(self._file, _BLOCK)
        self._closed = not block
        for line in self._cutter.cut(block or b"\n"):
            if line.strip():
                self._lines.append((0, self._offset, line))
            self._offset += len(line) + 1
        if self._cutter.waiting > LONGEST_BYTES:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"a line has more than {LONGEST_BYTES} bytes")


class FileSink:
    """Lines at the end of a file; each append is durable. With `whole` keys and headers stay."""

    def __init__(self, path: Path, *, whole: bool) -> None:
        self.file = Output(path)
        self._whole = whole

    def content(self, messages: Sequence[Outgoing]) -> bytes:
        return b"".join([to_line(message, whole=self._whole) for message in messages])

    def write(self, content: bytes) -> None:
        self.file.append(content)

    def close(self) -> None:
        self.file.close()


class PipeSink:
    """Lines to the pipe at `descriptor`, as it is now, whatever becomes of that later."""

    def __init__(self, descriptor: int, *, whole: bool) -> None:
        self._file = os.dup(descriptor)
        self._whole = whole

    def content(self, messages: Sequence[Outgoing]) -> bytes:
        return b"".join([to_line(message, whole=self._whole) for message in messages])

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except BrokenPipeError as error:
            raise MlctlError(ErrorCode.INTERRUPTED, "nobody reads the answers any more") from error

    def close(self) -> None:
        os.close(self._file)
