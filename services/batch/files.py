"""Rows of files: a file, a folder, a glob, a Hive-partitioned dataset, on a disk or in a bucket."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.formats.base import FilePlan, InputFormat, reading_errors
from mlctl.services.batch.formats.delimited import DelimitedFormat
from mlctl.services.batch.formats.ipc import IpcFormat
from mlctl.services.batch.formats.jsonl import JsonlFormat
from mlctl.services.batch.formats.parquet import ParquetFormat
from mlctl.services.batch.locations import (
    InputFile,
    list_files,
    require_unchanged,
    suffix_of,
    without_password,
)
from mlctl.services.batch.units import ColumnReading, JobPlan, Piece, Unit, with_types
from mlctl.services.tables.casts import can_cast, common_type

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
FORMATS: Mapping[str, type[InputFormat]] = {
    suffix: each
    for each in (ParquetFormat, DelimitedFormat, JsonlFormat, IpcFormat)
    for suffix in each.suffixes
}
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
# Footers read at once.
_READERS = 8


class FileSource:
    """The files at `location`, of one format, in the order of their names.

    Folders named KEY=VALUE are columns, of int64 if all values are whole numbers, else of text.
    """

    def __init__(self, location: str, unit_rows: int, options: Mapping[str, str]) -> None:
        self.name = without_password(location)
        files = list_files(location)
        suffix = next((s for s in map(suffix_of, (f.name for f in files)) if s in FORMATS), None)
        if suffix is None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"there are no rows to read at {self.name!r}",
                f"Files must end in one of: {', '.join(FORMATS)} (text also in .gz, .zst).",
            )
        self._format = FORMATS[suffix](unit_rows, options)
        self._files = [f for f in files if suffix_of(f.name) in self._format.suffixes]
        self.waits = files[0].system is not None
        self._keys = _partition_keys(self._files)
        self._format.folder_keys = frozenset(self._keys)
        self.only_text, self.open_columns = self._format.only_text, self._format.open_columns

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the first file and of the folder names."""
        file = self._files[0]
        with reading_errors(file):
            schema = self._format.schema(file)
        for name in self._format.types:
            if name not in schema.names:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT, f"types: there is no column {name!r} in {file.name}"
                )
        for name, numbers in self._keys.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.int64() if numbers else pa.string()))
        return schema

    def identity(self) -> Mapping[str, str]:
        listed = "\n".join(f"{f.name}\t{f.size}\t{f.version}" for f in self._files)
        return {
            "files": str(len(self._files)),
            "bytes": str(sum(file.size for file in self._files)),
            "versions": hashlib.sha256(listed.encode()).hexdigest()[:16],
            "columns": hashlib.sha256(self.schema.to_string().encode()).hexdigest()[:16],
        }

    def plan(
        self, columns: Sequence[str], condition: Filter | None, reading: ColumnReading | None = None
    ) -> JobPlan:
        self._format.reading = reading = reading or ColumnReading()
        files = [file for file in self._files if self._partition_matches(file, condition)]
        with ThreadPoolExecutor(_READERS, "mlctl-plan") as pool:
            plans = list(pool.map(lambda file: self._plan_file(file, condition), files))
        self.schema = with_types(self.schema, self._settled(files, plans, columns, reading.types))
        units: list[Unit] = []
        for file, plan in zip(files, plans, strict=True):
            for rows, part in plan.units:
                units.append(Unit(f"{len(units):06}", file.name, rows, (file, part)))
        return JobPlan(tuple(units), sum(plan.pruned for plan in plans))

    def read(self, unit: Unit, columns: Sequence[str], piece_rows: int) -> Iterator[Piece]:
        file, part = unit.part
        values = {**dict.fromkeys(self._keys, HIVE_NULL), **dict(_keys_of(file.name))}
        own = pa.schema([self.schema.field(name) for name in columns if name not in values])
        with reading_errors(file):
            require_unchanged(file)
            for piece in self._format.pieces(file, part, own, piece_rows):
                table = piece.table
                for name in columns:
                    if name in values:
                        value = self._key_value(name, values[name])
                        table = table.append_column(name, pa.repeat(value, table.num_rows))
                yield Piece(table.select(list(columns)), piece.numbers, piece.unreadable)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the columns instead of all files: units carry their own."""
        return {**vars(self), "schema": self.schema, "_files": self._files[:1]}

    def _plan_file(self, file: InputFile, condition: Filter | None) -> FilePlan:
        expression = None
        for name, text in _keys_of(file.name):
            from pyarrow import compute

            field, value = compute.field(name), self._key_value(name, text)
            term = field == value if value.is_valid else field.is_null()
            expression = term if expression is None else expression & term
        with reading_errors(file):
            return self._format.plan(file, condition, expression)

    def _settled(
        self,
        files: Sequence[InputFile],
        plans: Sequence[FilePlan],
        columns: Sequence[str],
        types: Mapping[str, pa.DataType],
    ) -> dict[str, pa.DataType]:
        """Return the types in which `columns` are read; INVALID_INPUT if files do not agree.

        A column that the files state in several types is read as the one that represents all of
        them, or else as that of the input that it feeds.
        """
        if not self._format.typed:
            return {name: kind for name, kind in types.items() if not self._is_settled(name)}
        found = {}
        for name in columns:
            if name in self._keys:
                continue
            kinds = [
                self._stated_type(file, plan.schema, name)
                for file, plan in zip(files, plans, strict=True)
                if plan.schema is not None
            ]
            if set(kinds) <= {self.schema.field(name).type}:
                continue
            found[name] = common_type(kinds) or types.get(name, kinds[0])
            for file, kind in zip(files, kinds, strict=True):
                if not can_cast(kind, found[name]):
                    raise self._differs(name, kinds[0], file, f"has {kind}")
        return found

    def _is_settled(self, name: str) -> bool:
        """Return whether a column keeps its type, whatever input it feeds.

        The user named it, or its values are true and false, which are 1 and 0 for a number.
        """
        index = self.schema.get_field_index(name)
        truths = index >= 0 and pa.types.is_boolean(self.schema.field(index).type)
        return truths or name in self._format.types

    def _stated_type(self, file: InputFile, schema: pa.Schema, name: str) -> pa.DataType:
        index = schema.get_field_index(name)
        if index < 0:
            problem = "has it twice" if name in schema.names else "has no such column"
            raise self._differs(name, self.schema.field(name).type, file, problem)
        return schema.field(index).type

    def _differs(self, name: str, kind: pa.DataType, file: InputFile, problem: str) -> MlctlError:
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"column {name!r} is {kind} in {self._files[0].name}, but {file.name} {problem}",
        )

    def _partition_matches(self, file: InputFile, condition: Filter | None) -> bool:
        """Return False if the folder names alone exclude every row of the file."""
        values = dict(_keys_of(file.name))
        if condition is None or not set(condition.columns) <= values.keys():
            return True
        row = {name: pa.repeat(self._key_value(name, values[name]), 1) for name in values}
        return bool(condition.apply(pa.table(row)).num_rows)

    def _key_value(self, name: str, text: str) -> Any:
        value = pa.scalar(None if text == HIVE_NULL else text, pa.string())
        return value.cast(self.schema.field(name).type)


def _keys_of(name: str) -> Iterator[tuple[str, str]]:
    for part in name.split("/")[:-1]:
        key, separator, value = part.partition("=")
        if separator and key:
            yield unquote(key), unquote(value)


def _partition_keys(files: Sequence[InputFile]) -> dict[str, bool]:
    """Return the columns of the folder names, and whether each has only whole numbers."""
    found: dict[str, bool] = {}
    for file in files:
        for key, value in _keys_of(file.name):
            number = value == HIVE_NULL or _WHOLE.fullmatch(value) is not None
            found[key] = found.get(key, True) and number
    return found
