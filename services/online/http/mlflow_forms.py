"""The requests of MLflow's scoring server: their forms as JSON, and CSV with a header.

A form is an object with one of `FORMS`, and perhaps `params`, which no model here takes. The rows
of `dataframe_split`, `dataframe_records` and `instances` and the columns of `inputs` are named as
the model's inputs are; a model with one input also takes its values alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlctl.bundle.tensors import Datatype, MissingValues, Signature, TensorSpec
from mlctl.services.online.http.predict import read_records, to_array
from mlctl.services.protocol.wire import invalid, shown

FORMS = frozenset({"dataframe_split", "dataframe_records", "instances", "inputs"})
_TRUTH: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}
# int() and float() also accept "1_0", and float() takes "nan" and "inf" as V2's JSON does not.
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")


def find_form(document: Mapping[str, Any]) -> str | None:
    """Return the form of a request; None if it has none or several, so it is another request."""
    found = FORMS & document.keys()
    return next(iter(found)) if len(found) == 1 and document.keys() <= {*found, "params"} else None


def read_form(
    document: Mapping[str, Any], form: str, signature: Signature, missing: MissingValues
) -> dict[str, np.ndarray]:
    """Return the inputs of a request of `form`; INVALID_INPUT says what is wrong."""
    if document.get("params"):
        raise invalid("field 'params': the model takes no parameters")
    value = document[form]
    if form == "dataframe_split":
        return _read_split(value, signature, missing)
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    if form == "dataframe_records" or (form == "instances" and rows):
        if not isinstance(value, list):
            raise invalid(f"field {form!r} must be an array of objects")
        return read_records(value, signature, missing)
    if form == "inputs" and isinstance(value, dict):
        return _read_columns(value, signature, missing)
    return _read_only(form, value, signature)


def read_csv(
    header: list[str], rows: list[list[str]], signature: Signature, missing: MissingValues
) -> dict[str, np.ndarray]:
    """Return the inputs of CSV whose first line names the columns; an empty field is null."""
    specs = {spec.name: spec for spec in signature.inputs}
    return read_records(
        [
            {
                name: _parse(specs[name], text, number)
                for name, text in zip(header, _whole(row, header, number), strict=True)
            }
            for number, row in enumerate(rows)
        ],
        signature,
        missing,
    )


def split_csv(text: str, signature: Signature) -> tuple[list[str], list[list[str]]] | None:
    """Return the header and the rows of CSV whose first line names inputs, each once; else None."""
    first, *rows = csv.reader(io.StringIO(text), strict=True)
    names = {spec.name for spec in signature.inputs}
    header = set(first) <= names and len(set(first)) == len(first) and bool(first)
    return (first, [row for row in rows if row]) if header else None


def _read_split(value: Any, signature: Signature, missing: MissingValues) -> dict[str, np.ndarray]:
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, list) or not all(isinstance(row, list) for row in data):
        raise invalid("field 'dataframe_split' must be an object whose 'data' is an array of rows")
    columns = value.get("columns")
    if columns is None:
        columns = [spec.name for spec in signature.inputs]
    if not isinstance(columns, list) or len(set(map(str, columns))) != len(columns):
        raise invalid("field 'columns' must be an array of distinct names")
    names = {spec.name for spec in signature.inputs}
    if len(signature.inputs) == 1 and not names & set(map(str, columns)):
        return _read_only("dataframe_split", data, signature)  # the columns of one matrix
    rows = [
        dict(zip(map(str, columns), _whole(row, columns, number), strict=True))
        for number, row in enumerate(data)
    ]
    return read_records(rows, signature, missing)


def _read_columns(
    value: dict[str, Any], signature: Signature, missing: MissingValues
) -> dict[str, np.ndarray]:
    names = [spec.name for spec in signature.inputs]
    if unknown := [name for name in value if name not in names]:
        raise invalid(f"input {shown(unknown[0])} is unknown; the model's inputs are {names}")
    if absent := [name for name in names if name not in {*value, *missing.optional}]:
        raise invalid(f"input {absent[0]!r} is missing; the model's inputs are {names}")
    columns = [value[name] for name in names if name in value]
    is_table = all(len(spec.shape) == 1 for spec in signature.inputs)
    same = all(isinstance(each, list) and len(each) == len(columns[0]) for each in columns)
    if is_table and signature.batched and columns and same:
        found = [name for name in names if name in value]
        rows = [dict(zip(found, row, strict=True)) for row in zip(*columns, strict=True)]
        return read_records(rows, signature, missing)
    return {
        spec.name: to_array(spec, value[spec.name])
        for spec in signature.inputs
        if spec.name in value
    }


def _read_only(form: str, value: Any, signature: Signature) -> dict[str, np.ndarray]:
    if len(signature.inputs) != 1 or not isinstance(value, list):
        names = ", ".join(repr(spec.name) for spec in signature.inputs)
        raise invalid(f"field {form!r} must name the model's inputs, which are {names}")
    spec = signature.inputs[0]
    return {spec.name: to_array(spec, value)}


def _whole(row: list[Any], columns: list[Any], number: int) -> list[Any]:
    if len(row) != len(columns):
        raise invalid(f"row {number} has {len(row)} values, expected {len(columns)}")
    return row


def _parse(spec: TensorSpec, text: str, number: int) -> Any:
    """Return the value of a field of CSV, as JSON has it."""
    if text == "":
        return None
    if spec.dtype is Datatype.BYTES:
        return text
    plain = text.strip()
    if spec.dtype is Datatype.BOOL and plain.lower() in _TRUTH:
        return _TRUTH[plain.lower()]
    if spec.dtype.is_integer and _WHOLE.fullmatch(plain) and len(plain) <= 20:
        return int(plain)
    if spec.dtype.value.startswith("FP") and _NUMBER.fullmatch(plain):
        return float(plain)
    raise invalid(
        f"row {number}: column {spec.name!r}: {shown(text)} is not of datatype {spec.dtype.value}"
    )
