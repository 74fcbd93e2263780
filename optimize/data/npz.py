"""Rows of an .npz, read through the archive's streams without ever holding an array whole."""

from __future__ import annotations

import math
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.lib import format as npy

from optimize.data.rows import Tensors
from optimize.data.source import CHUNK_BYTES, chunk_rows, invalid
from registry.quiet import first_line

_SUFFIX = ".npy"


@dataclass(frozen=True, slots=True)
class NpzSource:
    """The .npz at `path`, plain or compressed; pickled arrays are refused."""

    path: Path
    chunk_bytes: int = CHUNK_BYTES

    @property
    def name(self) -> str:
        return self.path.name

    def chunks(self) -> Iterator[Tensors]:
        """All arrays in step, as many rows at a time as `chunk_bytes` hold."""
        with _told(self.name), zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
            members = [_Member.open(archive, info, stack) for info in archive.infolist()]
            rows = _common_rows(members, self.name)
            step = chunk_rows(self.chunk_bytes, sum(member.row_bytes for member in members))
            readers = {member.name: member.reader(stack) for member in members}
            for start in range(0, rows, step):
                count = min(step, rows - start)
                yield {name: reader.next_rows(count) for name, reader in readers.items()}
            for member in members:
                member.finish()


class _Reader(Protocol):
    def next_rows(self, count: int) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class _Member:
    """One array of the archive: its header, and the stream behind the header."""

    name: str
    stream: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool

    @classmethod
    def open(cls, archive: zipfile.ZipFile, info: zipfile.ZipInfo, stack: ExitStack) -> _Member:
        if not info.filename.endswith(_SUFFIX):
            raise invalid(f"{info.filename!r} in the archive is no numpy array")
        stream = stack.enter_context(archive.open(info))
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise invalid(f"{info.filename} has named fields, which no input takes")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        name = info.filename.removesuffix(_SUFFIX)
        if dtype.hasobject:
            raise invalid(f"array {name!r} cannot be read: it holds pickled objects")
        if not shape:
            raise invalid(f"array {name!r} is a single value, expected one entry for each row")
        if info.file_size != stream.tell() + math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{info.filename} is shorter or longer than its header says")
        return cls(name, stream, shape, dtype, fortran and len(shape) > 1)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def reader(self, stack: ExitStack) -> _Reader:
        if not self.fortran or 0 in self.shape:
            return _InOrder(self)
        return _Transposed(self, stack.enter_context(tempfile.TemporaryFile()))

    def finish(self) -> None:
        """Read to the end, where the archive's checksum is compared."""
        self.stream.read(1)


class _InOrder:
    """Rows that lie one behind the other."""

    def __init__(self, member: _Member) -> None:
        self._member = member

    def next_rows(self, count: int) -> np.ndarray:
        member = self._member
        content = member.stream.read(count * member.row_bytes)
        return np.frombuffer(content, member.dtype).reshape(count, *member.shape[1:])


class _Transposed:
    """Fortran order: rows are spread over the whole array, so it is unpacked to disk first."""

    def __init__(self, member: _Member, scratch: IO[bytes]) -> None:
        shutil.copyfileobj(member.stream, scratch)
        scratch.flush()
        self._array = np.memmap(scratch, member.dtype, "r", shape=member.shape, order="F")
        self._start = 0

    def next_rows(self, count: int) -> np.ndarray:
        self._start += count
        return np.ascontiguousarray(self._array[self._start - count : self._start])


def _common_rows(members: list[_Member], name: str) -> int:
    if not members:
        raise invalid(f"{name} holds no arrays")
    lengths = {member.name: member.shape[0] for member in members}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise invalid(f"the arrays have different numbers of rows: {listed}")
    return members[0].shape[0]


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say which file it is that cannot be read, whatever layer finds it out."""
    try:
        yield
    except OSError as error:
        raise invalid(f"{name} cannot be read: {error.strerror or first_line(error)}") from error
    except RuntimeError as error:
        raise invalid(f"{name} cannot be read: {first_line(error)}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = f"it is damaged or cut short ({first_line(error)})"
        raise invalid(f"{name} cannot be read: {reason}") from error
