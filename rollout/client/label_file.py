"""Labels from CSV, JSON lines or Parquet: `request_id`, `label`, and `row` if there are several.

A line that is no label is an error that names the line; nothing is taken from such a file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.shadow.labels import Label

if TYPE_CHECKING:
    from collections.abc import Callable

_CSV, _JSON_LINES, _PARQUET = (".csv",), (".jsonl", ".ndjson"), (".parquet",)


class _Line(BaseModel):
    """One line; columns beside these are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    request_id: str = Field(min_length=1, max_length=128)
    label: bool | float | str | list[float]
    row: int | None = Field(default=None, ge=0)


def read_labels(path: Path) -> Iterator[Label]:
    """Yield the labels of the file, whose name says its format; INVALID_INPUT.

    The first line of the data has number 1 in Parquet; else lines are those of the file.
    """
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        yield from _labels(_parquet_lines(path), path.name)
    elif suffix in (*_CSV, *_JSON_LINES):
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                read = _csv_lines if suffix in _CSV else _json_lines
                yield from _labels(read(stream, path.name), path.name)
        except UnicodeDecodeError as error:
            raise _invalid(path.name, "it is not UTF-8 text") from error
    else:
        formats = ", ".join((*_CSV, *_JSON_LINES, *_PARQUET))
        raise _invalid(path.name, f"its format is unknown; give a file that ends in {formats}")


def read_label_stream(stream: TextIO) -> Iterator[Label]:
    """Yield the labels of standard input: JSON lines, or CSV if it does not begin with a brace."""
    first = stream.readline()
    read: Callable[[Iterator[str], str], Iterator[tuple[int, Mapping[str, Any]]]]
    read = _json_lines if first.lstrip().startswith("{") else _csv_lines

    def lines() -> Iterator[str]:
        yield first
        yield from stream

    return _labels(read(lines(), "-"), "-")


def _labels(lines: Iterator[tuple[int, Mapping[str, Any]]], name: str) -> Iterator[Label]:
    for number, values in lines:
        try:
            line = _Line.model_validate(values)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = str(fault["loc"][0])
            why = f"line {number}: {field}: {fault['msg'][0].lower()}{fault['msg'][1:]}"
            raise _invalid(name, why) from None
        yield Label(line.request_id, line.label, number, line.row)


def _csv_lines(stream: Iterator[str], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(stream, strict=True)
    try:
        missing = {"request_id", "label"} - set(reader.fieldnames or ())
        if missing:
            raise _invalid(name, f"line 1: the column {min(missing)} is missing")
        for values in reader:
            given = {key: value for key, value in values.items() if key != "row" or value}
            yield reader.line_num, given
    except csv.Error as error:
        raise _invalid(name, f"line {reader.line_num + 1}: {error}") from error


def _json_lines(stream: Iterator[str], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _invalid(name, f"line {number}: it is not JSON") from error
        if not isinstance(values, dict):
            raise _invalid(name, f"line {number}: it is not a JSON object")
        yield number, values


def _parquet_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = set(file.schema_arrow.names)
            if missing := {"request_id", "label"} - found:
                raise _invalid(path.name, f"the column {min(missing)} is missing")
            number = 0
            for batch in file.iter_batches(columns=[*sorted(found & set(_Line.model_fields))]):
                for values in batch.to_pylist():
                    number += 1
                    yield number, values
    except (OSError, pa.ArrowException) as error:
        raise _invalid(path.name, "it is not a readable Parquet file") from error


def _invalid(name: str, why: str) -> MlctlError:
    source = "standard input" if name == "-" else name
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{source}: {why}",
        "Each line has request_id and label, and row if the request has several rows. Nothing of "
        "the file was taken.",
    )
