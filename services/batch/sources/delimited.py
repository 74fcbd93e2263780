"""Rows of CSV and TSV, plain or compressed, with the columns' names in the first line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import BadRow, SourceRequest
from services.batch.locations import InputFile
from services.batch.sources.files import FilesSource, LoadedPiece, Piece, opened

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 4 << 20
_HEADER_LINES = 2  # the header itself, and that Arrow counts from one
# Nothing else: "NA" may be a country, and NaN is a number that --forbid-nan looks for.
_NULLS = ("",)


class DelimitedSource(FilesSource):
    """Types are those of the first rows; a field that does not fit makes its row a bad one.

    `--option delimiter=;` is what stands between fields, otherwise a comma, in .tsv a tab.
    """

    endings = (".csv", ".tsv")

    def __init__(self, request: SourceRequest) -> None:
        self._delimiter = request.options.get("delimiter", "")
        if len(self._delimiter) > 1:
            raise MlctlError(ErrorCode.INVALID_INPUT, "delimiter: it must be one character")
        super().__init__(request)

    def first_schema(self, file: InputFile) -> pa.Schema:
        """The types of the first block; of what may be anything, text."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        convert = arrow_csv.ConvertOptions(null_values=_NULLS)
        with opened(file) as stream, self._reader(file, stream, [], convert) as reader:
            fields = list(reader.schema)
        return pa.schema(
            [(field.name, self.types.get(field.name) or _plain(field.type)) for field in fields]
        )

    def pieces(self, file: InputFile, columns: Sequence[str]) -> Iterator[Piece]:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        schema = pa.schema([self.schema.field(name) for name in columns])
        # A file's own header: its columns may be in another order, but not be missing.
        names = list(columns) or self.schema.names[:1]
        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=names,
            null_values=_NULLS,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        malformed: deque[BadRow] = deque()
        with opened(file) as stream, self._reader(file, stream, malformed, convert) as reader:
            cutter = _Cutter(reader, self.unit_rows, malformed)
            for start, table, numbers, rejected in cutter:
                rows = table.num_rows + len(rejected)
                yield Piece(start, rows, partial(_typed, table, numbers, rejected, schema))

    def _reader(self, file: InputFile, stream: Any, malformed: Any, convert: Any) -> Any:
        from pyarrow import csv as arrow_csv

        def keep(row: Any) -> str:
            reason = f"the row has {row.actual_columns} fields, expected {row.expected_columns}"
            number = row.number - _HEADER_LINES
            malformed.append(BadRow(number, reason, {"line": row.text[:2000]}))
            return "skip"

        tabs = file.name.removesuffix(".gz").removesuffix(".zst").endswith(".tsv")
        return arrow_csv.open_csv(
            stream,
            # Numbers of rows are only told to a single thread.
            arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            arrow_csv.ParseOptions(
                delimiter=self._delimiter or ("\t" if tabs else ","),
                newlines_in_values=True,
                invalid_row_handler=keep,
            ),
            convert,
        )


open_source = DelimitedSource


class _Cutter:
    """Cuts what a reader gives into units of `unit_rows` rows of the file, bad ones included."""

    def __init__(self, batches: Any, unit_rows: int, malformed: deque[BadRow]) -> None:
        self._batches = batches
        self._unit_rows = unit_rows
        self._malformed = malformed
        self._held: list[Any] = []
        self._ended = False

    def __iter__(self) -> Iterator[tuple[int, pa.Table, Sequence[int], tuple[BadRow, ...]]]:
        start = 0
        while True:
            self._fill()
            end = start + self._unit_rows
            rejected = []
            while self._malformed and self._malformed[0].row < end:
                rejected.append(self._malformed.popleft())
            table = self._take(self._unit_rows - len(rejected))
            if not table.num_rows and not rejected:
                return
            bad = {row.row for row in rejected}
            rows = table.num_rows + len(bad)
            every: Sequence[int] = range(start, start + rows)
            numbers = [number for number in every if number not in bad] if bad else every
            yield start, table, numbers, tuple(rejected)
            start += rows

    def _fill(self) -> None:
        """Read on until a unit's rows are here, whichever of them are bad."""
        while not self._ended and sum(batch.num_rows for batch in self._held) < self._unit_rows:
            batch = next(self._batches, None)
            if batch is None:
                self._ended = True
            else:
                self._held.append(batch)

    def _take(self, rows: int) -> pa.Table:
        import pyarrow as pa

        table = pa.Table.from_batches(self._held, self._batches.schema)
        self._held = table.slice(rows).to_batches()
        return table.slice(0, rows)


def _typed(
    raw: pa.Table, numbers: Sequence[int], rejected: tuple[BadRow, ...], schema: pa.Schema
) -> LoadedPiece:
    """The columns in their types; rows with a field that does not fit go to the bad ones."""
    import pyarrow as pa

    problems: dict[int, str] = {}
    columns = {}
    for field in schema:
        columns[field.name], bad = _column(raw[field.name], field.type)
        for index in bad:
            problems.setdefault(index, f"column {field.name!r} is not {field.type}")
    table = pa.table(columns, schema=schema)
    if not problems:
        return LoadedPiece(table, rejected, numbers)
    good = [index for index in range(raw.num_rows) if index not in problems]
    misfits = (BadRow(numbers[i], reason, _texts(raw, i)) for i, reason in problems.items())
    return LoadedPiece(
        table.take(pa.array(good, pa.int64())),
        tuple(sorted((*rejected, *misfits), key=lambda bad: bad.row)),
        [numbers[index] for index in good],
    )


def _column(raw: Any, kind: Any) -> tuple[Any, list[int]]:
    """A column of bytes in its type, with null where the bytes do not fit, and where that is."""
    import pyarrow as pa

    try:
        return raw.cast(pa.string()).cast(kind), []
    except pa.ArrowException:
        values, bad = [], []
        for index, each in enumerate(raw.to_pylist()):
            try:
                text = None if each is None else each.decode()
                if text is not None and kind != pa.string():
                    text = text.strip()
                values.append(pa.scalar(text, pa.string()).cast(kind).as_py())
            except (pa.ArrowException, ValueError):
                values.append(None)
                bad.append(index)
        return pa.array(values, kind), bad


def _texts(raw: Any, index: int) -> dict[str, object]:
    row = raw.slice(index, 1).to_pylist()[0]
    return {
        name: None if value is None else value.decode(errors="replace")
        for name, value in row.items()
    }


def _plain(kind: Any) -> Any:
    """A column's type: times as fine as may come, and text where the type is a rare one."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    usual = (pa.int64(), pa.float64(), pa.bool_(), pa.date32())
    return kind if kind in usual else pa.string()
