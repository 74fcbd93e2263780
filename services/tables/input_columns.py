"""Map columns to model inputs, checked before any row is read."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlctl.bundle.tensors import (
    DYNAMIC,
    NO_MISSING,
    Datatype,
    MissingValues,
    Signature,
    TensorSpec,
)
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.tables.casts import is_text, plain_type

if TYPE_CHECKING:
    import pyarrow as pa

# Column names that the only input of a model may use as well.
_SINGLE_INPUT_NAMES = ("x", "inputs")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The columns of an input: one column of lists, or one column per value, in order.

    Lists are flat or nested, in row-major order; one size of a row may be dynamic.

    In a `nullable` input null is NaN, or empty text. Without columns all values are null.
    """

    spec: TensorSpec
    columns: tuple[str, ...]
    nullable: bool = False

    @property
    def width(self) -> int:
        """Values in a row of the input; -1 if they differ from row to row."""
        return DYNAMIC if DYNAMIC in self.spec.shape[1:] else math.prod(self.spec.shape[1:])

    def from_own_column(self) -> InputColumns:
        """Return the input with the column of its name, which some rows may have."""
        return replace(self, columns=(self.spec.name,))


def parse_map(items: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse `--map` values INPUT=COLUMN, INPUT=COLUMN,COLUMN,... or INPUT=GLOB; INVALID_INPUT."""
    found: dict[str, tuple[str, ...]] = {}
    for item in items:
        name, separator, columns = item.partition("=")
        if not (name and separator and columns):
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"--map {item}: write it as INPUT=COLUMN[,COLUMN...]"
            )
        found[name] = tuple(columns.split(","))
    return found


def find_feeds(
    schema: pa.Schema,
    signature: Signature,
    mapped: Mapping[str, tuple[str, ...]],
    missing: MissingValues = NO_MISSING,
) -> tuple[InputColumns, ...]:
    """Return the columns of each input; INVALID_INPUT lists the columns, and how to map them.

    Without `--map` an input is the column of its name, or else columns NAME_0, NAME_1...; the
    only input may be called `x` or `inputs` as well. `missing` says which inputs may be null, and
    which need no column.
    """
    names = {spec.name for spec in signature.inputs}
    if unknown := sorted(mapped.keys() - names):
        raise _mapping_error(f"the model has no input {unknown[0]!r}", schema, signature)
    feeds = []
    for spec in signature.inputs:
        if spec.name in mapped:
            columns = _expanded(mapped[spec.name], schema, signature)
        else:
            columns = _by_name(spec, schema, signature, missing.optional)
        feed = InputColumns(spec, columns, spec.name in missing.nullable)
        if problem := _problem(feed, schema):
            raise _mapping_error(f"input {spec.name!r}: {problem}", schema, signature)
        feeds.append(feed)
    return tuple(feeds)


def _expanded(patterns: Sequence[str], schema: pa.Schema, signature: Signature) -> tuple[str, ...]:
    columns: list[str] = []
    for pattern in patterns:
        exact = [pattern] if pattern in schema.names else []
        found = exact or [name for name in schema.names if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise _mapping_error(f"no column is named {pattern!r}", schema, signature)
        columns += found
    return tuple(columns)


def _by_name(
    spec: TensorSpec, schema: pa.Schema, signature: Signature, optional: Container[str]
) -> tuple[str, ...]:
    single = len(signature.inputs) == 1
    for name in (spec.name, *(_SINGLE_INPUT_NAMES if single else ())):
        if name in schema.names:
            return (name,)
        wide = tuple(f"{name}_{index}" for index in range(math.prod(spec.shape[1:])))
        if wide and all(column in schema.names for column in wide):
            return wide
    if spec.name in optional:
        return ()
    raise _mapping_error(f"no column feeds input {spec.name!r}", schema, signature)


def _problem(feed: InputColumns, schema: pa.Schema) -> str | None:
    """Return why columns of these types cannot feed the input, or None."""
    if twice := next((name for name in feed.columns if schema.names.count(name) > 1), None):
        return f"there are {schema.names.count(twice)} columns named {twice!r}; rename the others"
    fields = [schema.field(name) for name in feed.columns]
    if not fields:
        return None
    if len(fields) > 1:
        if feed.width != len(fields):
            return f"it has {_width(feed)}, but {len(fields)} columns are mapped to it"
        found = (_scalar_problem(feed.spec, field.name, field.type) for field in fields)
        return next(filter(None, found), None)
    return _single_problem(feed, fields[0].name, fields[0].type)


def _single_problem(feed: InputColumns, name: str, kind: Any) -> str | None:
    import pyarrow as pa

    inner = plain_type(kind)
    depth, known = 0, 1
    while is_list(inner):
        known = known * inner.list_size if pa.types.is_fixed_size_list(inner) else DYNAMIC
        inner, depth = plain_type(inner.value_type), depth + 1
    if depth == 0 and feed.width != 1:
        return f"column {name!r} has one value of {kind} in a row, expected {_width(feed)}"
    if feed.spec.shape[1:].count(DYNAMIC) > 1:
        return f"its rows of shape {list(feed.spec.shape[1:])} cannot be read from one column"
    if known > 0 and feed.width not in (DYNAMIC, known):
        return f"column {name!r} has {known} values in a row, expected {_width(feed)}"
    return _scalar_problem(feed.spec, name, inner)


def _scalar_problem(spec: TensorSpec, name: str, kind: Any) -> str | None:
    from pyarrow import types

    kind = plain_type(kind)
    number = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    # Text may be numbers: formats without types, such as CSV, have only text.
    text = (types.is_string, types.is_large_string)
    fits = is_text(kind)
    if spec.dtype is not Datatype.BYTES:
        fits = any(test(kind) for test in (*number, *text))
    if fits or types.is_null(kind):
        return None
    wanted = "text" if spec.dtype is Datatype.BYTES else "numbers"
    return f"column {name!r} holds {kind}, expected {wanted}"


def column_types(feeds: Sequence[InputColumns], schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return by column the type that represents every value of its inputs.

    For sources that do not state their types. Columns of lists in `schema` stay lists. A column
    that feeds both text and numbers has no such type.
    """
    import pyarrow as pa

    found: dict[str, set[pa.DataType]] = {}
    for feed in feeds:
        for name in feed.columns:
            found.setdefault(name, set()).add(_value_type(feed.spec.dtype))
    types = {}
    for name, kinds in found.items():
        if len(kinds) == 1 or pa.string() not in kinds:
            kind = kinds.pop() if len(kinds) == 1 else pa.float64()
            shown = schema.field(name).type if name in schema.names else kind
            types[name] = _with_values(shown, kind)
    return types


def _value_type(dtype: Datatype) -> pa.DataType:
    import pyarrow as pa

    match dtype, np.dtype(dtype.numpy_name).kind:
        case Datatype.BYTES, _:
            return pa.string()
        case Datatype.UINT64, _:
            return pa.uint64()
        case Datatype.BOOL, _:
            return pa.bool_()
        case _, "f":
            return pa.float64()
    return pa.int64()


def _with_values(kind: Any, value: pa.DataType) -> pa.DataType:
    """Return a type of lists with other values; `value` for other types."""
    import pyarrow as pa

    return pa.list_(_with_values(kind.value_type, value)) if is_list(kind) else value


def is_list(kind: Any) -> bool:
    """Return whether values of this Arrow type are lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _width(feed: InputColumns) -> str:
    return "a list of any length" if feed.width == DYNAMIC else f"{feed.width} values"


def _mapping_error(problem: str, schema: pa.Schema, signature: Signature) -> MlctlError:
    shown = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:_SHOWN])
    rest = "" if len(schema) <= _SHOWN else f" and {len(schema) - _SHOWN} more"
    inputs = ", ".join(f"{s.name} {s.dtype.value}{list(s.shape)}" for s in signature.inputs)
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{problem}; the columns are: {shown}{rest}",
        f"The model's inputs are {inputs}. Map columns with --map INPUT=COLUMN, "
        "--map INPUT=COLUMN,COLUMN,... or --map 'INPUT=GLOB*'.",
    )
