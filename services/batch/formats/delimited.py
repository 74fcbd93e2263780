"""CSV and TSV with a header, plain or compressed. The whole file is one unit."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import types

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.formats.base import InputFormat, opened_text
from mlctl.services.batch.locations import InputFile, suffix_of
from mlctl.services.batch.pieces import typed_piece
from mlctl.services.batch.units import Piece, UnreadableRow
from mlctl.services.tables.casts import Misfits, cast, plain
from mlctl.services.tables.values import row_text

_BLOCK_BYTES = 4 << 20
_HEADER_LINES = 2  # the header itself, and Arrow counts from one
# Nothing else: "NA" may be a country, and NaN is a number that --forbid-nan tests.
_NULLS = ("",)
_SHOWN = 2_000
_UNCLOSED = "unexpected end of data"  # as the csv module says
_QUOTE = ord('"')
_ZERO, _POINT, _MINUS, _TWO = ord("0"), ord("."), ord("-"), 2
# Rows in which a column has to be text to lose nothing.
_CHECKED_ROWS = 20_000
# More than a number: a plus, a zero in front, or more digits than a float has. Text of fewer
# characters has fewer digits.
_MORE = r"^\s*(\+|-?0[^.])"
_MORE_DIGITS = r"^\s*-?([0-9]{16}|[0.]*[1-9](\.?[0-9]){17})"
_FLOAT_CHARACTERS = 16
# More digits than microseconds have.
_NANOSECONDS = r"\.[0-9]{7}"


class DelimitedFormat(InputFormat):
    """Columns that feed no input have the types of the first 4 MiB, or are text if these lose any
    of it; a row with a field of another type is a bad row.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    typed = False
    only_text = True

    def __init__(self, unit_rows: int, options: Mapping[str, str]) -> None:
        super().__init__(unit_rows, options)
        self._delimiter = options.get("delimiter", "")
        if len(self._delimiter) > 1:
            raise MlctlError(ErrorCode.INVALID_INPUT, "delimiter: it must be one character")

    def schema(self, file: InputFile) -> pa.Schema:
        from pyarrow import csv as arrow_csv

        convert = arrow_csv.ConvertOptions(null_values=_NULLS)
        with opened_text(file) as stream, self._reader(file, stream, deque(), convert) as reader:
            try:
                inferred = [(field.name, field.type) for field in reader.schema]
            except UnicodeDecodeError as error:
                raise pa.ArrowInvalid("the names of its columns are not UTF-8") from error
        kinds = [_plain(kind) for _name, kind in inferred]
        names = [name for name, _kind in inferred]
        with opened_text(file) as stream, self._reader(file, stream, deque(), _as_text(names)) as r:
            texts = next(iter(r), None)
        columns = [] if texts is None else texts.columns
        for index, column in enumerate(columns):
            if _altered(column[:_CHECKED_ROWS], kinds[index]):
                kinds[index] = pa.string()
        return pa.schema(
            [(name, self.types.get(name, kind)) for name, kind in zip(names, kinds, strict=True)]
        )

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        convert = _as_text(schema.names)
        convert.include_columns = schema.names
        malformed: deque[UnreadableRow] = deque()
        next_row = 0
        with opened_text(file) as plain:
            stream = _QuoteCounter(plain)
            with self._reader(file, stream, malformed, convert) as reader:
                for batch in reader:
                    for start in range(0, batch.num_rows, piece_rows):
                        raw = pa.Table.from_batches([batch.slice(start, piece_rows)])
                        numbers, rejected = _numbered(raw.num_rows, next_row, malformed)
                        next_row = int(numbers[-1]) + 1
                        text = partial(row_text, raw)
                        yield typed_piece(raw, schema, numbers, self._converted, text, rejected)
            if stream.count % 2:
                self._require_closed(file)
        if malformed:
            yield Piece(schema.empty_table(), (), tuple(malformed))

    def _converted(self, field: pa.Field, column: Any) -> tuple[Any, Misfits]:
        found, misfits = cast(column, field.type)
        if field.name not in self.reading.types and field.name not in self.types:
            for index in _altered(column, field.type):
                misfits.setdefault(index, "")
        return found, misfits

    def _reader(
        self, file: InputFile, stream: Any, malformed: deque[UnreadableRow], convert: Any
    ) -> Any:
        from pyarrow import csv as arrow_csv

        def keep(row: Any) -> str:
            reason = f"the row has {row.actual_columns} fields, expected {row.expected_columns}"
            malformed.append(UnreadableRow(row.number - _HEADER_LINES, reason, row.text[:_SHOWN]))
            return "skip"

        delimiter = self._delimiter_of(file)
        _require_once(stream, delimiter, convert.include_columns)
        return arrow_csv.open_csv(
            stream,
            # Arrow counts rows only in a single thread.
            arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            arrow_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=keep,
            ),
            convert,
        )

    def _require_closed(self, file: InputFile) -> None:
        """Check that no quote takes the rest of `file` into its field, as Arrow allows.

        An odd number of quotes can also come from a field such as 5" that does not begin with one.
        """
        csv.field_size_limit(2 * _BLOCK_BYTES)  # a longer row straddles blocks, which is an error
        with opened_text(file) as stream:
            lines = io.TextIOWrapper(stream, errors="replace", newline="")
            rows = csv.reader(lines, delimiter=self._delimiter_of(file), strict=True)
            number = -1  # of the header
            try:
                for number, _row in enumerate(rows):  # noqa: B007 - the last one is used
                    pass
            except csv.Error as error:
                if _UNCLOSED in str(error):
                    raise pa.ArrowInvalid(f"a quote in row {number} is never closed") from error

    def _delimiter_of(self, file: InputFile) -> str:
        return self._delimiter or ("\t" if suffix_of(file.name) == ".tsv" else ",")


class _QuoteCounter:
    """A stream that counts the quotes in what was read of it."""

    closed = False

    def __init__(self, stream: io.BufferedReader) -> None:
        self.count = 0
        self.peek = stream.peek
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(size)
        self.count += int(np.count_nonzero(np.frombuffer(found, np.uint8) == _QUOTE))
        return found


def _numbered(
    rows: int, start: int, malformed: deque[UnreadableRow]
) -> tuple[np.ndarray, tuple[UnreadableRow, ...]]:
    """Return the numbers of the next `rows` good rows, and the malformed rows among them."""
    numbers = np.arange(start, start + rows + len(malformed))
    numbers = numbers[~np.isin(numbers, [row.row for row in malformed])][:rows]
    rejected = []
    while malformed and malformed[0].row < numbers[-1]:
        rejected.append(malformed.popleft())
    return numbers, tuple(rejected)


def _require_once(stream: Any, delimiter: str, names: Sequence[str]) -> None:
    """Check that the first line has `names`, each once: Arrow would read the first of them."""
    line = stream.peek(_BLOCK_BYTES).partition(b"\n")[0].decode(errors="replace")
    try:
        found = next(csv.reader([line.rstrip("\r")], delimiter=delimiter), [])
    except csv.Error:
        return
    for name in names:
        if found.count(name) > 1:
            raise pa.ArrowInvalid(f"there are {found.count(name)} columns named {name!r}")


def _as_text(names: Sequence[str]) -> Any:
    from pyarrow import csv as arrow_csv

    return arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        null_values=_NULLS,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _altered(column: Any, kind: Any) -> list[int]:
    """Return the fields that are more than their value of type `kind`: +49, 007, 0x1F."""
    texts, patterns = plain(column), list[str]()
    if types.is_timestamp(kind):
        patterns.append(_NANOSECONDS)
    elif types.is_integer(kind) or types.is_floating(kind):
        lengths, suspects = _suspects(texts)
        if suspects:
            patterns.append(_MORE)
        if types.is_floating(kind) and lengths.max(initial=0) >= _FLOAT_CHARACTERS:
            patterns.append(_MORE_DIGITS)
    found: set[int] = set()
    for pattern in patterns:
        from pyarrow import compute

        matching = compute.match_substring_regex(texts, pattern)
        found |= set(compute.indices_nonzero(matching).to_pylist())
    return sorted(found)


def _suspects(texts: Any) -> tuple[np.ndarray, bool]:
    """Return the lengths of the fields, and whether one begins as no usual number does.

    In numpy, because Arrow takes three times as long for each of its functions.
    """
    _valid, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(ends)
    if data is None or not data.size:
        return lengths, False
    content = np.frombuffer(data, np.uint8)
    last = len(content) - 1
    first, second, third = (content[np.minimum(ends[:-1] + shift, last)] for shift in range(3))
    usual = (first > _ZERO) | ((first == _ZERO) & (second == _POINT)) | (lengths < _TWO)
    usual |= (first == _MINUS) & ((second > _ZERO) | (third == _POINT))
    return lengths, not bool(usual.all())


def _plain(kind: Any) -> Any:
    """Return the type of an inferred column: times in microseconds, and text for rare types."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    usual = (pa.int64(), pa.float64(), pa.bool_(), pa.date32())
    return kind if kind in usual else pa.string()
