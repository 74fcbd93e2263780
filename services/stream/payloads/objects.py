"""Messages that are objects with a field for each input, converted to arrays together.

An input's field is one row of it: flat, in the row's shape, or one plain value where the row
has one. With one more level of lists it is several rows, and the answer has that level too. Null
or no field is a missing value of an input that may lack values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.model.input_checks import absent_rows
from mlctl.services.protocol.json_data import STRUCT_CODES, decode_data, decode_nullable
from mlctl.services.protocol.wire import Declared, declare, invalid
from mlctl.services.stream.base import Decoded
from mlctl.services.stream.payloads import KEEP_ALL, PayloadRequest

# Fewer messages than this are read one by one to find the one at fault.
_FEW = 8
_EXACT = 1 << 63
_CODES: Mapping[str, str] = MappingProxyType({**STRUCT_CODES, "FP16": "e", "FP64": "d"})


class Carried(NamedTuple):
    """What an answer needs of its message: the `kept` fields, and whether it has `many` rows."""

    many: bool
    kept: Mapping[str, Any]


Alone = Callable[[int, Any], Mapping[str, np.ndarray] | None]


class ObjectReader:
    """Reads documents by a model's signature; `alone` may read another form, by index."""

    def __init__(
        self, request: PayloadRequest, signature: Signature, alone: Alone | None = None
    ) -> None:
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._keep = request.keep
        self._keep_all = KEEP_ALL in request.keep
        self._outputs = frozenset(spec.name for spec in signature.outputs)
        self._max_rows = request.max_rows
        self._alone = alone
        columns = {spec.name for spec in signature.inputs if len(spec.shape) == 1}
        self._nullable = request.missing.nullable & columns
        self._optional = request.missing.optional
        self._fixed = all(DYNAMIC not in spec.shape[1:] for spec in signature.inputs)

    def read(self, blocks: Iterable[Sequence[Any]], rejected: dict[int, str]) -> Sequence[Decoded]:
        """Return the documents that are not in `rejected`, and add to it those that are invalid.

        Each block is converted before the next one is parsed: its values are still in the
        processor's cache, and their memory is used again.
        """
        pieces: list[Decoded] = []
        end = 0
        for block in blocks:
            start, end = end, end + len(block)
            indices: Sequence[int] = range(start, end)
            documents = block
            if rejected:
                indices = [index for index in indices if index not in rejected]
                documents = [block[index - start] for index in indices]
            if indices:
                pieces += self._pieces(documents, indices, rejected)
        return joined(pieces, rejected)

    def _pieces(
        self, documents: Sequence[Any], indices: Sequence[int], rejected: dict[int, str]
    ) -> Iterator[Decoded]:
        piece = self._whole(documents, indices) if self._fixed else None
        if piece is not None:
            yield piece
        elif len(indices) > _FEW and self._fixed:
            half = len(indices) // 2
            yield from self._pieces(documents[:half], indices[:half], rejected)
            yield from self._pieces(documents[half:], indices[half:], rejected)
        else:
            for index, document in zip(indices, documents, strict=True):
                try:
                    yield self._one(index, document)
                except MlctlError as error:
                    rejected[index] = error.message

    def _whole(self, documents: Sequence[Any], indices: Sequence[int]) -> Decoded | None:
        """Convert all documents together; None if one of them is not one plain row."""
        if set(map(type, documents)) != {dict}:
            return None
        try:
            inputs = {name: self._column(spec, documents) for name, spec in self._specs.items()}
            carried: list[Carried | None] = [None] * len(documents)
            if self._keep:
                carried = [self._carried(document, many=False) for document in documents]
        except (KeyError, TypeError, OverflowError, struct.error, MlctlError):
            return None
        return Decoded(inputs, indices, [1] * len(documents), carried=carried)

    def _column(self, spec: TensorSpec, documents: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return the rows of an input; KeyError for a field that no message may lack."""
        if spec.name in self._optional:
            values = [document.get(spec.name) for document in documents]
        else:
            values = [document[spec.name] for document in documents]
            if spec.name not in self._nullable:
                return _column(spec, values)
        return decode_nullable(spec, values, lambda filled: _column(spec, filled))

    def _one(self, index: int, document: Any) -> Decoded:
        found = None if self._alone is None else self._alone(index, document)
        many = found is not None
        if not isinstance(document, dict):
            raise invalid("the message is not an object with a field for each input")
        if found is None:
            found = {}
            for name, spec in self._specs.items():
                if name not in document:
                    if name not in self._optional:
                        names = ", ".join(repr(each) for each in self._specs)
                        raise invalid(f"input {name!r} is missing; the model's inputs are {names}")
                    continue
                read = _value_or_null if name in self._nullable else _value
                found[name], several = read(spec, document[name])
                many = many or several
            count = len(next(iter(found.values()))) if found else 1
            for name in self._specs.keys() - found.keys():
                found[name] = absent_rows(self._specs[name], count)
        rows = check_rows(found, self._specs, self._max_rows)
        return Decoded(found, [index], [rows], carried=[self._carried(document, many=many)])

    def _carried(self, document: Mapping[str, Any], *, many: bool) -> Carried | None:
        if not self._keep:
            return Carried(many, {}) if many else None
        if self._keep_all:
            kept = dict(document)
            if clashes := self._outputs & kept.keys():
                raise invalid(f"field {min(clashes)!r} has the name of an output")
        else:
            kept = {name: document[name] for name in self._keep if name in document}
        for name, value in kept.items():
            if type(value) is float and abs(value) >= _EXACT:
                raise invalid(f"field {name!r} has more digits than can be kept; send it as text")
        return Carried(many, kept)


def check_rows(
    inputs: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], max_rows: int
) -> int:
    """Return a message's rows; INVALID_INPUT if inputs differ or are missing, or at the limit."""
    if missing := specs.keys() - inputs.keys():
        raise invalid(f"input {min(missing)!r} is missing")
    counts = {len(array) for array in inputs.values()}
    if len(counts) > 1:
        raise invalid("the inputs have different numbers of rows")
    (rows,) = counts
    if not 0 < rows <= max_rows:
        raise invalid(f"the message has {rows:,} rows (limit {max_rows:,})")
    return rows


def joined(pieces: Iterable[Decoded], rejected: dict[int, str]) -> Sequence[Decoded]:
    """Join pieces of equal shapes, in the order of their first messages."""
    groups: dict[Any, list[Decoded]] = {}
    for piece in pieces:
        key = tuple(array.shape[1:] for array in piece.inputs.values())
        groups.setdefault(key, []).append(piece)
    if not groups:
        return [Decoded({}, (), (), rejected)]
    first, *others = groups.values()
    return [_joined(first, rejected), *(_joined(group, {}) for group in others)]


def _joined(pieces: Sequence[Decoded], rejected: dict[int, str]) -> Decoded:
    first = pieces[0]
    if len(pieces) == 1:
        kept, rows, carried, inputs = first.kept, first.rows, first.carried, first.inputs
    else:
        kept = list(chain.from_iterable(piece.kept for piece in pieces))
        rows = list(chain.from_iterable(piece.rows for piece in pieces))
        carried = list(chain.from_iterable(piece.carried for piece in pieces))
        inputs = {
            name: np.concatenate([piece.inputs[name] for piece in pieces]) for name in first.inputs
        }
    plain = carried.count(None) == len(carried)
    return Decoded(inputs, kept, rows, rejected, () if plain else carried)


def _column(spec: TensorSpec, values: list[Any]) -> np.ndarray:
    """Return one plain row of an input per message.

    TypeError, OverflowError, struct.error or INVALID_INPUT if it is another one.
    """
    shape = spec.shape[1:]
    width, count = math.prod(shape), len(values)
    rows = [values]
    if shape and not (width == 1 and set(map(type, values)).isdisjoint({list, dict})):
        if set(map(type, values)) != {list} or set(map(len, values)) != {width}:
            raise TypeError("not flat")
        rows = values
    if code := _CODES.get(spec.dtype.value):
        return _numbers(code, rows, np.dtype(spec.dtype.numpy_name)).reshape(count, *shape)
    # Declared as flat: nested data is rejected.
    declared = Declared(spec, (count * width,), count * width, np.dtype(spec.dtype.numpy_name))
    return decode_data(declared, list(chain.from_iterable(rows))).reshape(count, *shape)


def _numbers(code: str, rows: Sequence[list[Any]], dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers of lists of equal length, in an array that may be written to.

    It takes less than half of the time of `decode_data`, which then reports what is wrong.
    """
    pack = struct.Struct(f"={len(rows[0])}{code}").pack
    found = np.frombuffer(bytearray().join([pack(*row) for row in rows]), dtype)
    if dtype.kind == "f" and not np.isfinite(found).all():
        raise OverflowError("not finite")
    # `struct` takes true and false for 1 and 0.
    if ((found == 0) | (found == 1)).any() and bool in set(map(type, chain.from_iterable(rows))):
        raise TypeError("not a number")
    return found


def _value_or_null(spec: TensorSpec, value: Any) -> tuple[np.ndarray, bool]:
    """Return what `_value` does for an input of plain rows, of which some may be null."""
    many = isinstance(value, list)
    rows = value if many else [value]
    return decode_nullable(spec, rows, lambda filled: _value(spec, filled)[0]), many


def _value(spec: TensorSpec, value: Any) -> tuple[np.ndarray, bool]:
    """Return the rows of one message's field, and whether it has a level for several rows."""
    rank, row = len(spec.shape), spec.shape[1:]
    dims: list[int] = []
    inner = value
    while isinstance(inner, list) and len(dims) <= rank:
        dims.append(len(inner))
        inner = inner[0] if inner else None
    many = len(dims) == rank
    if not many:
        plain = not dims and DYNAMIC not in row and math.prod(row) == 1
        flat = len(dims) == 1 and rank > 2 and DYNAMIC not in row
        # Data may be flat, whatever its declared shape.
        dims = [1, *row] if plain or flat else [1, *dims]
        value = [value] if not flat else value
    declared = declare({spec.name: spec}, spec.name, spec.dtype.value, dims)
    return decode_data(declared, value), many
