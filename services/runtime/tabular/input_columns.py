"""Map columns to model inputs, checked before any row is read."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import (
    DYNAMIC,
    NO_MISSING,
    Datatype,
    MissingValues,
    Signature,
    TensorSpec,
)

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

    inner = getattr(kind, "storage_type", kind)
    depth, known = 0, 1
    while is_list(inner):
        known = known * inner.list_size if pa.types.is_fixed_size_list(inner) else DYNAMIC
        inner, depth = inner.value_type, depth + 1
    if depth == 0 and feed.width != 1:
        return f"column {name!r} has one value of {kind} in a row, expected {_width(feed)}"
    if feed.spec.shape[1:].count(DYNAMIC) > 1:
        return f"its rows of shape {list(feed.spec.shape[1:])} cannot be read from one column"
    if known > 0 and feed.width not in (DYNAMIC, known):
        return f"column {name!r} has {known} values in a row, expected {_width(feed)}"
    return _scalar_problem(feed.spec, name, inner)


def _scalar_problem(spec: TensorSpec, name: str, kind: Any) -> str | None:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    number = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    # Text may be numbers: formats without types, such as CSV, have only text.
    tests = text if spec.dtype is Datatype.BYTES else (*number, *text[:2])
    if any(test(kind) for test in tests) or types.is_null(kind):
        return None
    wanted = "text" if spec.dtype is Datatype.BYTES else "numbers"
    return f"column {name!r} holds {kind}, expected {wanted}"


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
