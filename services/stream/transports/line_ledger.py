"""The ledger of a file that is read: how far it was, and what is being appended to others.

Two entries take turns in one file: a write that was cut off leaves the other one. An entry is made
before the appends that it tells of, so after a kill the newest whole one is enough.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bundle.errors import ErrorCode, MlctlError
from bundle.files import fsync_directory

_SLOT_BYTES = 16 << 10
# The checksum and the length of an entry, hexadecimal.
_HEAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file was read: `offset` is where the last line that is done begins, -1 for none.

    `turn` counts how often the file was replaced; `head` is the checksum of its first `known`
    bytes, by which it is recognized.
    """

    turn: int = 0
    offset: int = -1
    known: int = 0
    head: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """`length` bytes with the checksum `check`, written after the first `before` bytes."""

    before: int
    length: int
    check: int


@dataclass(frozen=True, slots=True)
class Entry:
    """`mark` was reached. If `appends` are whole in their files, `then` was."""

    mark: Mark
    then: Mark | None = None
    appends: dict[str, Append] = field(default_factory=dict)


class Ledger:
    """The ledger at `path`, for one process at a time: JOB_RUNNING names `who` reads already."""

    def __init__(self, path: Path, who: str) -> None:
        new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._number, self.entry = _newest(path)
        except BaseException as error:
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise
            raise MlctlError(ErrorCode.JOB_RUNNING, f"another process reads {who}") from error
        if new:
            fsync_directory(path.parent)

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)

    def save(self, entry: Entry) -> None:
        """Make `entry` the newest one, and durable; DISK_FULL is worth another try."""
        number = self._number + 1
        content = orjson.dumps({"number": number, **asdict(entry)})
        whole = b"%08x%08x%b" % (zlib.crc32(content), len(content), content)
        if len(whole) > _SLOT_BYTES:
            raise MlctlError(ErrorCode.INVALID_INPUT, "the paths of the outputs are too long")
        try:
            self._write(whole, number % 2 * _SLOT_BYTES)
        except OSError as error:
            # The number stays: another try must not take the turn of the entry that is whole.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise MlctlError(
                ErrorCode.DISK_FULL, "there is no space left for the ledger of positions"
            ) from error
        self._number, self.entry = number, entry

    def _write(self, content: bytes, place: int) -> None:
        while content:
            written = os.pwrite(self._file, content, place)
            content, place = content[written:], place + written
        os.fdatasync(self._file)


def read_entry(path: Path) -> Entry | None:
    """The newest entry at `path`; None if there is none. INVALID_INPUT if it is no ledger."""
    return _newest(path)[1] if path.exists() else None


def _newest(path: Path) -> tuple[int, Entry | None]:
    content = path.read_bytes()
    found = [each for start in (0, _SLOT_BYTES) if (each := _entry(content[start:])) is not None]
    # The very first entry may have been cut off: what would be there are the marks of no others.
    if not found and len(content) > _SLOT_BYTES:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{path} is not a ledger of positions",
            "Remove it to begin anew, or use another --group.",
        )
    return max(found, key=lambda each: each[0], default=(1, None))


def _entry(slot: bytes) -> tuple[int, Entry] | None:
    try:
        length = int(slot[8:_HEAD_BYTES], 16)
        content = slot[_HEAD_BYTES : _HEAD_BYTES + length]
        if len(content) < length or zlib.crc32(content) != int(slot[:8], 16):
            return None
        document: Any = orjson.loads(content)
        then = document["then"]
        appends = {name: Append(**each) for name, each in document["appends"].items()}
        mark = Mark(**document["mark"])
        return document["number"], Entry(mark, None if then is None else Mark(**then), appends)
    except (ValueError, KeyError, TypeError):
        return None
