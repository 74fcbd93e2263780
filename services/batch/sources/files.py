"""What the forms have in common whose files are read from their beginning to their end."""

from __future__ import annotations

import contextlib
import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow, Chunk, SourceRequest, Unit
from services.batch.locations import InputFile, list_files, reached, without_password

if TYPE_CHECKING:
    import pyarrow as pa

_CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class LoadedPiece:
    """A piece as a table, with the rows that could not be read; `numbers` as in Chunk."""

    table: pa.Table
    rejected: tuple[BadRow, ...] = ()
    numbers: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a file; `load` is only called for those that are not done."""

    start: int
    rows: int
    load: Callable[[], LoadedPiece]


class Listed:
    """The `files` at `location` with one of `endings`; the one that was named may have any."""

    def __init__(self, location: str, endings: tuple[str, ...]) -> None:
        self._location = location
        self._endings = endings
        self._scanned = False
        self.files = self._found()

    def check_again(self) -> None:
        """JOB_CHANGED if, at each scan but the first, they are not what they were."""
        if self._scanned:
            for system in (file.system for file in self.files[:1] if file.system is not None):
                system.invalidate_cache()
            if self._found() != self.files:
                raise MlctlError(
                    ErrorCode.JOB_CHANGED,
                    f"the files of {without_password(self._location)} changed since the start",
                )
        self._scanned = True

    def _found(self) -> list[InputFile]:
        files = list_files(self._location)
        return files if len(files) == 1 else list_files(self._location, self._endings)


class FilesSource(ABC):
    """The files of `request` in order of their names; one that is named may be called anything.

    `--option types=NAME:TYPE,...` sets the types of columns, for forms that have none.
    """

    endings: tuple[str, ...]

    def __init__(self, request: SourceRequest) -> None:
        self.name = request.location
        self.unit_rows = request.unit_rows
        self.types = parse_types(request.options.get("types", ""))
        endings = tuple(end + codec for end in self.endings for codec in ("", *_CODECS))
        self._listed = Listed(request.location, endings)
        self.files = self._listed.files
        if not self.files:
            told = " or ".join(self.endings)
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{self.name} has no files of {told}")

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the first file, as far as its beginning tells."""
        file = self.files[0]
        with told(file):
            found = self.first_schema(file)
        if unknown := [name for name in self.types if name not in found.names]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"types: there is no column {unknown[0]!r} in {file.name}",
            )
        return found

    def identity(self) -> Mapping[str, str]:
        listed = "\n".join(f"{f.name}\t{f.size}\t{f.version}" for f in self.files)
        return {
            "files": str(len(self.files)),
            "bytes": str(sum(file.size for file in self.files)),
            "versions": hashlib.sha256(listed.encode()).hexdigest()[:16],
            "columns": ", ".join(f"{field.name}:{field.type}" for field in self.schema),
        }

    def total_rows(self) -> int | None:
        return None

    def scan(self, columns: Sequence[str], done: Container[str]) -> Iterator[Chunk]:
        self._listed.check_again()
        for number, file in enumerate(self.files):
            with told(file):
                for index, piece in enumerate(self.pieces(file, columns)):
                    unit = Unit(f"{number:06}-{index:08}", file.name, piece.start, piece.rows)
                    if unit.id in done:
                        continue
                    loaded = piece.load()
                    yield Chunk(unit, loaded.table, loaded.rejected, loaded.numbers)

    @abstractmethod
    def first_schema(self, file: InputFile) -> pa.Schema: ...

    @abstractmethod
    def pieces(self, file: InputFile, columns: Sequence[str]) -> Iterator[Piece]:
        """The file's rows in pieces of `unit_rows`, always cut at the same places."""


@contextlib.contextmanager
def told(file: InputFile) -> Iterator[None]:
    """INVALID_INPUT with the file's name if it cannot be read, SOURCE_UNAVAILABLE if it is away."""
    import pyarrow as pa

    try:
        with contextlib.nullcontext() if file.system is None else reached(file.name):
            yield
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{file.name} cannot be read: {said}",
            "If it changed while it was read, run the same command with --restart.",
        ) from error


@contextlib.contextmanager
def opened(file: InputFile) -> Iterator[io.BufferedReader]:
    """The content, unpacked if the name says that it is compressed."""
    import pyarrow as pa

    codec = next((name for ending, name in _CODECS.items() if file.path.endswith(ending)), None)
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(file.open())
        if codec is not None:
            plain = pa.PythonFile(raw, mode="r")
            raw = stack.enter_context(pa.CompressedInputStream(plain, codec))
        yield stack.enter_context(io.BufferedReader(raw, 1 << 20))


def parse_types(text: str) -> dict[str, pa.DataType]:
    """`age:double,zip:string` as types of Arrow by column."""
    import pyarrow as pa

    found = {}
    for each in filter(None, text.split(",")):
        name, separator, kind = each.rpartition(":")
        try:
            found[name.strip()] = pa.type_for_alias(kind.strip() if separator else "")
        except ValueError as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"types: {each!r} is not NAME:TYPE",
                "Types are string, int64, double, bool, date32, timestamp[us] and such.",
            ) from error
    return found
