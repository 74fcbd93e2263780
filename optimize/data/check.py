"""Checks of each chunk of evaluation data against the signature, and the digest of all chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.canonical import canonical_json
from mlctl.optimize.data.rows import Rows, Tensors
from mlctl.optimize.data.source import (
    NO_PAD,
    Columns,
    Pad,
    RowSource,
    find_columns,
    invalid,
)
from mlctl.services.model.input_checks import add_absent
from mlctl.services.protocol.wire import encode_raw

_PAD_HINT = (
    "Pad all rows to one length, or name the input with its fill value in --batching, which pads "
    'here and in the server: {"pad": {"ids": 0}}.'
)


class Pass:
    """One pass over a source: its chunks, checked against the signature, and their digest.

    The digest covers names, types, shapes and the values in row order, with numbers in the
    machine's byte order; it does not depend on where chunks begin.

    Rows of the inputs in `pad` may differ in length. `lengths` are the longest that were found;
    a later pass gets them as `padded_to`, and gives all rows that length.
    """

    def __init__(
        self,
        source: RowSource,
        signature: Signature,
        missing: MissingValues,
        pad: Pad = NO_PAD,
        padded_to: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._missing = missing
        self._pad = pad
        self._padded_to = padded_to
        self.lengths: dict[str, int] = {}
        self._source = source
        self._signature = signature
        self._optional = [spec for spec in signature.inputs if spec.name in missing.optional]
        self._forms: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._hashes: dict[str, hashlib._Hash] = {}
        self.rows = 0

    def chunks(self) -> Iterator[Rows]:
        """Yield chunks with inputs by their names in the signature; `rows` counts them.

        INVALID_INPUT names the array, the row, and the expected form.
        """
        for arrays in self._source.chunks():
            columns = find_columns(arrays, self._signature, self._missing.optional)
            count = self._same_length(arrays)
            if count == 0:
                continue
            chunk = self._checked(arrays, columns)
            self._digest(chunk)
            yield chunk
            self.rows += count

    def sha256(self) -> str:
        """Return the hex digest of all rows so far."""
        content = {
            name: [dtype, list(shape), self._hashes[name].hexdigest()]
            for name, (dtype, shape) in self._forms.items()
        }
        return hashlib.sha256(canonical_json([self.rows, content])).hexdigest()

    def _checked(self, arrays: Tensors, columns: Columns) -> Rows:
        inputs = {
            spec.name: self._input(name, arrays[name], spec)
            for name, spec in columns.inputs.items()
        }
        add_absent(inputs, self._optional)
        name = columns.labels
        return Rows(inputs, None if name is None else self._labels(name, arrays[name]))

    def _same_length(self, arrays: Tensors) -> int:
        for name, array in arrays.items():
            if array.ndim == 0:
                raise invalid(f"array {name!r} is a single value, expected one for each row")
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise invalid(f"the arrays have different numbers of rows: {listed}{self._where()}")
        return next(iter(lengths.values()))

    def _input(self, name: str, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        if spec.name in self._pad:
            array = self._padded(name, array, spec)
        elif array.dtype == object and spec.dtype is not Datatype.BYTES:
            lengths = [np.size(row) for row in array]
            raise invalid(
                f"the rows of {name!r} have {min(lengths)} to {max(lengths)} values{self._where()}",
                _PAD_HINT,
            )
        if spec.dtype is Datatype.BYTES:
            array = _as_bytes(name, array, missing=spec.name in self._missing.nullable)
        try:
            datatype = Datatype.from_numpy_name(array.dtype.name)
        except ValueError as error:
            raise invalid(f"array {name!r}: {error}{self._where()}") from error
        if problem := spec.mismatch(datatype, (DYNAMIC, *array.shape[1:])):
            raise invalid(f"array {name!r} does not fit the model: {problem}{self._where()}")
        self._reject_not_finite(name, array, nan=spec.name in self._missing.nullable)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _padded(self, name: str, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """Return rows of any lengths as one array, filled up at their ends; hash them unpadded."""
        rows = [np.asarray(row) for row in array]
        if any(row.ndim != len(spec.shape) - 1 for row in rows):
            raise invalid(f"array {name!r} does not fit the model: expected lists{self._where()}")
        lengths = [len(row) for row in rows]
        longest = max(*lengths, self.lengths.get(spec.name, 0))
        self.lengths[spec.name] = longest
        longest = max(longest, self._padded_to.get(spec.name, 0))
        shape = (len(rows), longest, *rows[0].shape[1:])
        kind = np.result_type(*(row.dtype for row in rows))
        filled = np.full(shape, self._pad[spec.name], kind)
        digest = self._hashes.setdefault(f"input {spec.name}", hashlib.sha256())
        for number, row in enumerate(rows):
            filled[number, : len(row)] = row
            digest.update(f"{len(row)} ".encode() + filled[number, : len(row)].tobytes())
        return filled

    def _labels(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return class numbers as int64 [rows], quantities as float64 [rows] or [rows, k]."""
        if array.ndim == 1 and array.dtype.kind in "iub":
            return array.astype(np.int64)
        relevance = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iub"
        if relevance or (array.ndim <= 2 and array.dtype.kind == "f"):
            self._reject_not_finite(name, array)
            return array.astype(np.float64)
        raise invalid(
            f"array {name!r} must be integers of shape [rows], or numbers of shape [rows] or "
            f"[rows, k]; it is {_form(array.dtype.name, array.shape[1:])}"
        )

    def _reject_not_finite(self, name: str, array: np.ndarray, *, nan: bool = False) -> None:
        """Reject infinite numbers, and NaN unless it stands for a missing one."""
        if array.dtype.kind != "f":
            return
        finite = ~np.isinf(array) if nan else np.isfinite(array)
        if finite.all():
            return
        row = self.rows + int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
        raise invalid(
            f"array {name!r} has NaN or infinite values, the first in row {row}",
            "Fill those values as the model's own preprocessing does, or drop the rows.",
        )

    def _digest(self, chunk: Rows) -> None:
        arrays = {f"input {name}": array for name, array in chunk.inputs.items()}
        if chunk.labels is not None:
            arrays["labels"] = chunk.labels
        forms = {name: (array.dtype.name, array.shape[1:]) for name, array in arrays.items()}
        padded = {f"input {name}" for name in self._pad}
        self._reject_changed(
            {
                # The length of a padded row is that of the longest so far.
                name: (dtype, shape[1:] if name in padded else shape)
                for name, (dtype, shape) in forms.items()
            }
        )
        for name, array in arrays.items():
            if name not in padded:
                self._hashes.setdefault(name, hashlib.sha256()).update(_value_bytes(array))

    def _reject_changed(self, forms: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        """Reject rows of another shape than before, or labels in some chunks only."""
        self._forms = self._forms or forms
        if forms.keys() != self._forms.keys():
            raise invalid(f"some rows have labels and some have none{self._where()}")
        for name, form in forms.items():
            if form != self._forms[name]:
                raise invalid(
                    f"{name} changes from {_form(*self._forms[name])} to {_form(*form)}"
                    f"{self._where()}",
                    _PAD_HINT,
                )

    def _where(self) -> str:
        return f" (in the batch that starts at row {self.rows})" if self.rows else ""


def _as_bytes(name: str, array: np.ndarray, *, missing: bool) -> np.ndarray:
    """Return strings as UTF-8 bytes in an object array; INVALID_INPUT for other elements.

    With `missing`, None and NaN become empty text. Numpy's fixed-width bytes would lose trailing
    NULs.
    """
    values = array.astype(object)
    for index, value in enumerate(values.flat):
        absent = missing and (value is None or value != value)  # noqa: PLR0124 - NaN
        values.flat[index] = b"" if absent else _encode(name, value)
    return values


def _encode(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise invalid(
            f"array {name!r} holds a value of type {type(value).__name__}, expected text",
            "Store strings or bytes.",
        )
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"array {name!r} holds text that is not Unicode: {error.reason}") from error


def _value_bytes(array: np.ndarray) -> bytes | memoryview:
    """Return the bytes of all values, for the digest."""
    if array.dtype == object:
        return encode_raw(Datatype.BYTES, array)
    return np.ascontiguousarray(array).data


def _form(dtype: str, row: tuple[int, ...]) -> str:
    return f"{dtype} of shape [{', '.join(['rows', *map(str, row)])}]"
