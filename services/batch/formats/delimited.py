"""CSV and TSV with a header, plain or compressed. The whole file is one unit."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import types

from bundle.errors import ErrorCode, MlctlError
from services.batch.formats.base import InputFormat, opened
from services.batch.locations import InputFile, suffix_of
from services.batch.pieces import typed_piece
from services.batch.units import Piece, UnreadableRow

_BLOCK_BYTES = 4 << 20
_HEADER_LINES = 2  # the header itself, and Arrow counts from one
# Nothing else: "NA" may be a country, and NaN is a number that --forbid-nan tests.
_NULLS = ("",)
_SHOWN = 2_000


class DelimitedFormat(InputFormat):
    """Types are those of the first 4 MiB; a row with a field of another type is a bad row."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    def __init__(self, unit_rows: int, options: Mapping[str, str]) -> None:
        super().__init__(unit_rows, options)
        self._delimiter = options.get("delimiter", "")
        if len(self._delimiter) > 1:
            raise MlctlError(ErrorCode.INVALID_INPUT, "delimiter: it must be one character")

    def schema(self, file: InputFile) -> pa.Schema:
        from pyarrow import csv as arrow_csv

        convert = arrow_csv.ConvertOptions(null_values=_NULLS)
        with opened(file) as stream, self._reader(file, stream, deque(), convert) as reader:
            fields = list(reader.schema)
        return pa.schema(
            [(field.name, self.types.get(field.name) or _plain(field.type)) for field in fields]
        )

    def pieces(
        self,
        file: InputFile,
        part: Any,  # noqa: ARG002
        schema: pa.Schema,
        piece_rows: int,
    ) -> Iterator[Piece]:
        from pyarrow import csv as arrow_csv

        convert = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(schema.names, pa.binary()),
            include_columns=schema.names,
            null_values=_NULLS,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        malformed: deque[UnreadableRow] = deque()
        next_row = 0
        with opened(file) as stream, self._reader(file, stream, malformed, convert) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, piece_rows):
                    raw = pa.Table.from_batches([batch.slice(start, piece_rows)])
                    numbers, rejected = _numbered(raw.num_rows, next_row, malformed)
                    next_row = int(numbers[-1]) + 1
                    text = partial(_row_text, raw)
                    yield typed_piece(raw, schema, numbers, _converted, text, rejected)
        if malformed:
            yield Piece(schema.empty_table(), (), tuple(malformed))

    def _reader(
        self, file: InputFile, stream: Any, malformed: deque[UnreadableRow], convert: Any
    ) -> Any:
        from pyarrow import csv as arrow_csv

        def keep(row: Any) -> str:
            reason = f"the row has {row.actual_columns} fields, expected {row.expected_columns}"
            malformed.append(UnreadableRow(row.number - _HEADER_LINES, reason, row.text[:_SHOWN]))
            return "skip"

        tabs = suffix_of(file.name) == ".tsv"
        return arrow_csv.open_csv(
            stream,
            # Arrow counts rows only in a single thread.
            arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            arrow_csv.ParseOptions(
                delimiter=self._delimiter or ("\t" if tabs else ","),
                newlines_in_values=True,
                invalid_row_handler=keep,
            ),
            convert,
        )


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


def _converted(column: Any, kind: pa.DataType) -> Any:
    """Return text as a column of that type; blanks around a number are left out."""
    if column.type == kind:
        return column
    texts = column.cast(pa.string())
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        from pyarrow import compute

        return compute.utf8_trim_whitespace(texts).cast(kind)


def _row_text(raw: Any, index: int) -> str:
    """Return the fields as one JSON object."""
    row = raw.slice(index, 1).to_pylist()[0]
    texts = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in row.items()
    }
    return json.dumps(texts, ensure_ascii=False, default=str)[:_SHOWN]


def _plain(kind: Any) -> Any:
    """Return the type of an inferred column: times in microseconds, and text for rare types."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    usual = (pa.int64(), pa.float64(), pa.bool_(), pa.date32())
    return kind if kind in usual else pa.string()
