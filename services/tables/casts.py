"""Cast columns to a type without changing a value: what does not fit is reported, never narrowed.

Decimals, booleans, nulls, dictionaries, extension types and all of Arrow's forms of text are read
like the plain columns that they stand for, with and without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 60
# Arrow's and numpy's names; the names of integers are equal.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_TRUTH: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}

# The values that do not fit, as text, by their index.
Misfits = dict[int, str]


def plain(column: Any) -> Any:
    """Return a column as one array, without extension types, dictionaries and views."""
    import pyarrow as pa
    from pyarrow import types

    array = column
    if isinstance(column, pa.ChunkedArray):  # combining one chunk would copy it
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    array = getattr(array, "storage", array)
    kind = array.type
    if types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        from pyarrow import compute

        return plain(compute.run_end_decode(array))
    return array if plain_type(kind) == kind else array.cast(plain_type(kind))


def plain_type(kind: Any) -> Any:
    """Return the type of `plain` columns for a column of type `kind`."""
    import pyarrow as pa
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    return kind


def is_text(kind: Any) -> bool:
    """Return whether values of this plain type are text, or bytes that may be text."""
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def common_type(kinds: Iterable[Any]) -> Any | None:
    """Return the type that represents the values of all `kinds`, or None if there is none."""
    import pyarrow as pa

    distinct = list(dict.fromkeys(kinds))
    if len(distinct) == 1:
        return distinct[0]
    schemas = [pa.schema([("", kind)]) for kind in dict.fromkeys(map(plain_type, distinct))]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def can_cast(found: Any, kind: pa.DataType) -> bool:
    """Return whether values of type `found` may be values of `kind`."""
    import pyarrow as pa
    from pyarrow import types

    found = plain_type(found)
    if found == kind or types.is_null(found):
        return True
    if is_text(kind) and not is_text(found):
        return False
    try:
        pa.array([], found).cast(kind)
    except pa.ArrowNotImplementedError:
        return False
    return True


def cast(column: Any, kind: pa.DataType, *, exact: bool = False) -> tuple[Any, Misfits]:
    """Return a column as `kind`, null for gaps and misfits, and the misfits.

    A float is the nearest one of a number, and true is 1, unless the values have to be `exact`:
    then numbers, text and booleans stay apart, and floats represent whole numbers. Blanks around a
    number in text are left out.
    """
    import pyarrow as pa
    from pyarrow import types

    column = plain(column)
    if column.type == kind:
        return column, {}
    if types.is_null(column.type):
        return pa.nulls(len(column), kind), {}
    try:
        return _cast_whole(column, kind), {}
    except pa.ArrowException:
        return from_values(column.to_pylist(), kind, exact=exact)


def from_values(
    values: Sequence[Any], kind: pa.DataType, *, exact: bool = False
) -> tuple[Any, Misfits]:
    """Return Python's values as a column; otherwise as `cast`."""
    import pyarrow as pa

    if set(map(type, values)) <= _own_types(kind):
        try:
            return pa.array(values, kind), {}
        except (pa.ArrowException, ValueError, OverflowError):
            pass  # one of them is out of range, or no Unicode
    fitting: list[Any] = []
    misfits: Misfits = {}
    for index, value in enumerate(values):
        try:
            fitting.append(_fitting(value, kind, exact=exact))
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
            fitting.append(None)
            misfits[index] = (repr(value) if isinstance(value, str) else str(value))[:_SHOWN]
    return pa.array(fitting, kind), misfits


def _cast_whole(column: Any, kind: pa.DataType) -> Any:
    """Cast all values at once; ArrowException unless each of them fits."""
    import pyarrow as pa
    from pyarrow import types

    found = column.type
    if is_text(kind) and not is_text(found):
        raise pa.ArrowInvalid("numbers are no text")
    if types.is_boolean(kind) and not is_text(found):
        raise pa.ArrowInvalid("Arrow takes every number but 0 for true")
    if types.is_decimal(found) and types.is_floating(kind):
        column = column.cast(pa.string())  # Arrow rounds text to the nearest float
    if is_text(column.type):
        # Bytes that are no UTF-8 are rejected here.
        column = column.cast(pa.large_string() if _is_large(column.type) else pa.string())
        try:
            made = column.cast(kind)
        except pa.ArrowInvalid:
            from pyarrow import compute

            made = compute.utf8_trim_whitespace(column).cast(kind)
    else:
        made = column.cast(kind)
    if types.is_floating(kind) and np.isinf(memory(made)).any():
        raise pa.ArrowInvalid("a number may be out of range")
    return made


def _is_large(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_large_string(kind) or types.is_large_binary(kind))


def memory(column: Any) -> np.ndarray:
    """Return the numbers of a column, without a copy if possible; those of gaps are arbitrary.

    pyarrow's own way loads pandas, if there is one, which takes longer than a small job.
    """
    import pyarrow as pa

    if pa.types.is_boolean(column.type) or not len(column):
        plain: np.ndarray = column.to_numpy(zero_copy_only=False)
        return plain
    name = str(column.type)
    dtype = np.dtype(_FLOATS.get(name, name))
    values: np.ndarray = np.frombuffer(
        column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize
    )
    return values


def _own_types(kind: Any) -> frozenset[type]:
    """Return the Python types whose values Arrow stores in `kind` as they are, or rejects."""
    from pyarrow import types

    nothing = type(None)
    if types.is_integer(kind):
        return frozenset({int, nothing})
    if types.is_float64(kind):
        return frozenset({float, nothing})
    if types.is_boolean(kind):
        return frozenset({bool, nothing})
    if types.is_string(kind) or types.is_large_string(kind):
        return frozenset({str, nothing})
    if types.is_binary(kind) or types.is_large_binary(kind):
        return frozenset({bytes, nothing})
    return frozenset({nothing})


def _fitting(value: Any, kind: Any, *, exact: bool) -> Any:
    """Return the value that `kind` stores; ValueError, TypeError or ArithmeticError if none."""
    from pyarrow import types

    if value is None:
        return None
    if types.is_nested(kind):
        return _nested(value, kind, exact=exact)
    if exact and not _is_same_kind(value, kind):
        raise TypeError(value)
    if types.is_boolean(kind):
        return _TRUTH[_known(str(value).strip().lower())]
    if types.is_floating(kind):
        return _float(value, kind, exact=exact)
    if types.is_integer(kind):
        return _stored(_whole(value), kind)
    if types.is_decimal(kind):
        return _stored(Decimal(_text_of(value)), kind)
    if is_text(kind):
        return _stored(value, kind)
    if isinstance(value, bytes):
        value = value.decode()
    return _parsed(value, kind) if isinstance(value, str) else _stored(value, kind)


def _nested(value: Any, kind: Any, *, exact: bool) -> Any:
    """Return a list, or an object without fields that `kind` lacks."""
    from pyarrow import types

    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if isinstance(value, Mapping) and value.keys() <= {field.name for field in fields}:
            return {f.name: _fitting(value.get(f.name), f.type, exact=exact) for f in fields}
    elif isinstance(value, list):
        return [_fitting(each, kind.value_type, exact=exact) for each in value]
    raise TypeError(value)


def _is_same_kind(value: Any, kind: Any) -> bool:
    """Return whether neither or both are true and false, and neither or both are numbers."""
    from pyarrow import types

    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if types.is_boolean(kind) or isinstance(value, bool):
        return bool(types.is_boolean(kind)) and isinstance(value, bool)
    return not (number and isinstance(value, str))


def _stored(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    return pa.scalar(value, kind).as_py()


def _parsed(text: str, kind: Any) -> Any:
    """Return a date or time from its text."""
    import pyarrow as pa

    return pa.scalar(text.strip(), pa.string()).cast(kind).as_py()


def _known(text: str) -> str:
    if text not in _TRUTH:
        raise ValueError(text)
    return text


def _text_of(value: Any) -> str:
    """Return a number or text as the text of a number."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, int | float | Decimal | str | bytes):
        raise TypeError(value)
    text = (value.decode() if isinstance(value, bytes) else str(value)).strip()
    if "_" in text:  # a number for Python alone
        raise ValueError(text)
    return text


def _whole(value: Any) -> int:
    # int() keeps digits that float() would round.
    if type(value) is int:
        return value
    text = _text_of(value)
    try:
        return int(text)
    except ValueError:
        number = Decimal(text)
        if number != number.to_integral_value():
            raise
        return int(number)


def _float(value: Any, kind: Any, *, exact: bool) -> float:
    import pyarrow as pa

    text = _text_of(value)
    number = float(text)
    if math.isinf(number) and "inf" not in text.lower():
        raise OverflowError(text)
    found: float = pa.scalar(number, kind).as_py()
    if math.isinf(found) and not math.isinf(number):
        raise OverflowError(text)
    if exact and isinstance(value, int) and int(found) != value:
        raise ValueError(text)
    return found
