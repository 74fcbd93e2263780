"""Streams as lines: pipes (`-`), and files that grow.

A file's position is kept in a ledger beside it. From file to file each message is answered
exactly once: what a commit is about to append is in the ledger first, so that after a kill
all of it is there, or it is taken away again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Examined,
    Guarantee,
    LinkRequest,
    Message,
    Outgoing,
    Place,
)
from services.stream.transports.line_ends import FileLines, FileSink, PipeLines, PipeSink
from services.stream.transports.line_files import Tail, settled
from services.stream.transports.line_ledger import Append, Entry, Ledger, Mark, read_entry
from services.stream.transports.lines import from_line

PIPE = "-"
_OPTIONS = ("headers", "rotated", "ledger")
# Lines that are looked at at once.
_MANY = 10_000


class LinesLink:
    """Reads lines from one place, and appends answers and dead letters to others."""

    def __init__(self, request: LinkRequest) -> None:
        self._request = request
        files = (request.source, *filter(None, (request.answers, request.dead)))
        exact = all(place.scheme != PIPE for place in files)
        self.guarantee = Guarantee.EXACTLY_ONCE if exact else Guarantee.AT_LEAST_ONCE
        self._ledger: Ledger | None = None
        self._lines = _lines(request.source)
        self._sinks: dict[str, FileSink | PipeSink] = {}
        self._mark: Mark | None = None
        self._uncommitted = 0
        self._open = ExitStack()

    @property
    def ended(self) -> bool:
        """Whether a pipe was closed at its other end, and all of it was read."""
        return self._lines.ended

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._enter(stack)
            self._open = stack.pop_all()
        return self

    def _enter(self, stack: ExitStack) -> None:
        request, lines = self._request, self._lines
        path = _ledger(request.source, request.group)
        stack.callback(lines.close)
        if path is not None:
            who = f"{request.source.shown()} as group {request.group!r}"
            self._ledger = Ledger(path, who)
            stack.callback(self._ledger.close)
        for name, place in (("answers", request.answers), ("dead", request.dead)):
            if place is not None:
                self._sinks[name] = _sink(place, dead=name == "dead")
                stack.callback(self._sinks[name].close)
        if self._ledger is not None and isinstance(lines, FileLines):
            entry = self._ledger.entry
            if entry is not None:
                self._mark = settled(entry, [sink.file for sink in self._files()])
            elif request.start == "latest":
                self._mark = lines.tail.end_mark()
                self._ledger.save(Entry(self._mark))
            lines.tail.open(self._mark)
            stack.callback(self._keep_mark)
        for sink in self._files():
            sink.file.end_line()

    def __exit__(self, *_exc_info: object) -> None:
        self._open.close()

    def _keep_mark(self) -> None:
        if self._ledger is not None and self._mark is not None:
            self._ledger.save(Entry(self._mark))

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        if not limit:
            return ()
        lines = self._lines.read(limit, wait_s)
        self._uncommitted += len(lines)
        return [Message(str(turn), offset, *from_line(line)) for turn, offset, line in lines]

    def commit(self, batch: Commit) -> None:
        written = [
            (self._sinks[name], self._sinks[name].content(messages))
            for name, messages in (("answers", batch.answers), ("dead", batch.dead))
            if messages and name in self._sinks
        ]
        appends = {
            sink: Append(sink.file.size, len(content), zlib.crc32(content))
            for sink, content in written
            if isinstance(sink, FileSink)
        }
        mark = self._mark
        if batch.done and isinstance(self._lines, FileLines) and self._ledger is not None:
            last = batch.done[-1]
            mark = self._lines.tail.mark(int(last.partition), int(last.offset))
            named = {str(sink.file.path.resolve()): each for sink, each in appends.items()}
            self._ledger.save(Entry(self._mark or Mark(), mark, named))
        try:
            for sink, content in written:
                sink.write(content)
        except BaseException:
            for sink, append in appends.items():
                sink.file.undo(append)
            raise
        self._mark = mark
        self._uncommitted -= len(batch.done)

    def acknowledge(self, done: Sequence[Message]) -> None:
        """The consumer's half: the position alone."""
        self.commit(Commit(done))

    def lag(self) -> Mapping[str, int]:
        return {"0": self._lines.ahead() + self._uncommitted}

    def group_lag(self) -> int:
        return sum(self.lag().values())

    def _files(self) -> list[FileSink]:
        return [sink for sink in self._sinks.values() if isinstance(sink, FileSink)]


class LinesProducer:
    """Appends lines to one place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> Self:
        self._sink = _sink(self._place)
        if isinstance(self._sink, FileSink):
            self._sink.file.end_line()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._sink.close()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            self._sink.write(self._sink.content(messages))


class LinesTransport:
    """Pipes and files of lines."""

    def open_link(self, request: LinkRequest) -> LinesLink:
        return LinesLink(request)

    def open_consumer(self, request: LinkRequest) -> LinesLink:
        return LinesLink(LinkRequest(request.source, request.group, start=request.start))

    def open_producer(self, place: Place) -> LinesProducer:
        return LinesProducer(place)

    def browse(self, place: Place, *, last: int | None = None) -> Iterator[Message]:
        """The lines that are there; of a pipe, all until its end."""
        if place.scheme == PIPE:
            raise MlctlError(ErrorCode.INVALID_INPUT, "a pipe cannot be looked at")
        tail = _opened(place)
        try:
            skip = max(0, tail.ahead() - last) if last is not None else 0
            while lines := tail.read(_MANY):
                for turn, offset, line in lines[skip:]:
                    yield Message(str(turn), offset, *from_line(line))
                skip = max(0, skip - len(lines))
        finally:
            tail.close()

    def follow(self, place: Place, wait_s: float) -> Iterator[Message | None]:
        """Lines from now on."""
        lines: FileLines | PipeLines
        if place.scheme == PIPE:
            lines = PipeLines(0)
        else:
            tail = Tail(_path(place), anew=True)
            tail.open(tail.end_mark())
            lines = FileLines(tail)
        try:
            while not lines.ended:
                found = lines.read(_MANY, wait_s)
                for turn, offset, line in found:
                    yield Message(str(turn), offset, *from_line(line))
                if not found:
                    yield None
        finally:
            lines.close()

    def examine(self, place: Place, group: str) -> Examined:
        """What is in the file, and how much of it `group` has not done."""
        if place.scheme == PIPE:
            remark = "what was read from a pipe and not answered yet is gone with the process"
            return Examined(Guarantee.AT_LEAST_ONCE, "standard streams", remarks=(remark,))
        tail = _opened(place)
        try:
            messages = lag = tail.ahead()
            ledger = _ledger(place, group)
            entry = read_entry(ledger) if ledger is not None else None
            if entry is not None:
                tail.close()
                tail = Tail(_path(place), anew=True)
                tail.open(entry.then or entry.mark)
                lag = tail.ahead()
        finally:
            tail.close()
        remark = "exactly once if answers and dead letters are files, too"
        return Examined(Guarantee.EXACTLY_ONCE, "file", messages, {"0": lag}, (remark,))


transport = LinesTransport()


def _opened(place: Place) -> Tail:
    path = _path(place)
    if not path.is_file():
        raise MlctlError(ErrorCode.NOT_FOUND, f"there is no file {path}")
    tail = Tail(path, anew=True)
    tail.open()
    return tail


def _sink(place: Place, *, dead: bool = False) -> FileSink | PipeSink:
    whole = dead or place.options.get("headers") == "yes"
    if place.scheme == PIPE:
        return PipeSink(int(place.options.get("descriptor", 1)), whole=whole)
    return FileSink(_path(place), whole=whole)


def _path(place: Place) -> Path:
    if unknown := sorted(set(place.options) - set(_OPTIONS)):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a file of lines has no option {unknown[0]!r}",
            f"Known are: {', '.join(_OPTIONS)}.",
        )
    if not place.address:
        raise MlctlError(ErrorCode.INVALID_INPUT, "file:// needs a path, as in file://rows.jsonl")
    return Path(place.address)


def _lines(place: Place) -> FileLines | PipeLines:
    if place.scheme == PIPE:
        return PipeLines(0)
    return FileLines(Tail(_path(place), anew=place.options.get("rotated") == "anew"))


def _ledger(place: Place, group: str) -> Path | None:
    """Where the group's position in a file is; None for a pipe, which has none."""
    if place.scheme == PIPE:
        return None
    if named := place.options.get("ledger"):
        return Path(named)
    path = _path(place)
    return path.with_name(f"{path.name}.{re.sub(r'[^A-Za-z0-9_-]', '_', group)}.ledger")
