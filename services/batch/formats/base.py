"""The interface of file formats that rows are read from, and the errors of files."""

from __future__ import annotations

import codecs
import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.locations import InputFile
from mlctl.services.batch.transient_errors import translate_errors
from mlctl.services.batch.units import ColumnReading, Piece


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file's units as (rows, part), the rows that no unit has, and its own columns if known."""

    units: Sequence[tuple[int | None, Any]]
    pruned: int = 0
    schema: pa.Schema | None = None


class InputFormat(ABC):
    """A file format; `suffixes` are those of its files. By default a file is one unit."""

    suffixes: ClassVar[tuple[str, ...]]
    # Whether files state the types of their columns; the next two are those of Source.
    typed: ClassVar[bool] = True
    only_text: ClassVar[bool] = False
    open_columns: ClassVar[bool] = False
    # How the columns are read, and those of the folder names; a source sets them.
    reading = ColumnReading()
    folder_keys: frozenset[str] = frozenset()

    def __init__(self, unit_rows: int, options: Mapping[str, str]) -> None:
        self.unit_rows = unit_rows
        self.types = parse_types(options.get("types", ""))

    @abstractmethod
    def schema(self, file: InputFile) -> pa.Schema:
        """Return the columns of `file`, inferred from its beginning."""

    def plan(self, file: InputFile, condition: Filter | None, keys: Any) -> FilePlan:  # noqa: ARG002
        """Return the units of `file`; `keys` is Arrow's expression of its partition, or None."""
        return FilePlan([(None, None)])

    @abstractmethod
    def pieces(
        self, file: InputFile, part: Any, schema: pa.Schema, piece_rows: int
    ) -> Iterator[Piece]:
        """Yield the columns of `schema` of a unit."""


@contextlib.contextmanager
def reading_errors(file: InputFile) -> Iterator[None]:
    """Raise INVALID_INPUT for a file that cannot be read, SOURCE_UNAVAILABLE if that may pass."""
    remote = file.system is not None
    try:
        with (
            translate_errors(file.name, ErrorCode.SOURCE_UNAVAILABLE)
            if remote
            else contextlib.nullcontext()
        ):
            yield
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        if "straddling" in text:
            text = "a row is larger than a block of the reader, or a quote in it never ends"
        if isinstance(error, pa.ArrowKeyError):
            text = f"it lacks a column of the first file ({text})"
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{file.name} cannot be read: {text}",
            "If it changed while it was read, run the same command with --restart.",
        ) from error


@contextlib.contextmanager
def opened(file: InputFile) -> Iterator[io.BufferedReader]:
    """Open the content, decompressed if the file name says so."""
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(file.open())
        if file.compression is not None:
            plain = pa.PythonFile(raw, mode="r")
            raw = stack.enter_context(pa.CompressedInputStream(plain, file.compression))
        yield stack.enter_context(io.BufferedReader(raw, 1 << 20))


@contextlib.contextmanager
def opened_text(file: InputFile) -> Iterator[io.BufferedReader]:
    """Open the content after its byte order mark; INVALID_INPUT if it is not UTF-8."""
    with opened(file) as stream:
        first = stream.peek(4)[:4]
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in first:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{file.name} is text in UTF-16, expected UTF-8",
                "Save it as UTF-8, such as with: iconv -f UTF-16 -t UTF-8 OLD > NEW",
            )
        if first.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        yield stream


def parse_types(text: str) -> dict[str, pa.DataType]:
    """Parse `--option types=`: `age:double,zip:string` as Arrow types by column."""
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
