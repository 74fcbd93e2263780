"""What every chunk of evaluation data must be, and the digest of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from bundle.manifest import canonical_json
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from optimize.data.columns import Columns, find_columns
from optimize.data.rows import Rows, Tensors
from optimize.data.source import RowSource, invalid
from optimize.data.text import as_bytes, value_bytes

_PAD_HINT = "Pad all rows to one length, and mask the padding if the model takes a mask."


class Pass:
    """One pass over a source: its chunks, checked against the signature, and their digest.

    Chunk borders leave no trace in the digest: it covers names, types, shapes and the
    values in row order, with numbers in the byte order of the machine.
    """

    def __init__(self, source: RowSource, signature: Signature) -> None:
        self._source = source
        self._signature = signature
        self._forms: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._hashes: dict[str, hashlib._Hash] = {}
        self.rows = 0

    def chunks(self) -> Iterator[Rows]:
        """The chunks with inputs by their names in the signature; `rows` grows as they come.

        INVALID_INPUT names the array, the row, and what was expected.
        """
        for arrays in self._source.chunks():
            columns = find_columns(arrays, self._signature)
            count = self._same_length(arrays)
            if count == 0:
                continue
            chunk = self._checked(arrays, columns)
            self._digest(chunk)
            yield chunk
            self.rows += count

    def sha256(self) -> str:
        """The hex digest of all rows so far."""
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
        if spec.dtype is Datatype.BYTES:
            array = as_bytes(name, array)
        try:
            datatype = Datatype.from_numpy_name(array.dtype.name)
        except ValueError as error:
            raise invalid(f"array {name!r}: {error}{self._where()}") from error
        if problem := spec.mismatch(datatype, (DYNAMIC, *array.shape[1:])):
            raise invalid(f"array {name!r} does not fit the model: {problem}{self._where()}")
        self._refuse_not_finite(name, array)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _labels(self, name: str, array: np.ndarray) -> np.ndarray:
        """Class numbers as int64 [rows], quantities as float64 [rows] or [rows, k]."""
        if array.ndim == 1 and array.dtype.kind in "iub":
            return array.astype(np.int64)
        if array.ndim <= 2 and array.dtype.kind == "f":
            self._refuse_not_finite(name, array)
            return array.astype(np.float64)
        raise invalid(
            f"array {name!r} must be integers of shape [rows], or floats of shape [rows] or "
            f"[rows, k]; it is {_form(array.dtype.name, array.shape[1:])}"
        )

    def _refuse_not_finite(self, name: str, array: np.ndarray) -> None:
        if array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
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
        self._refuse_changed(forms)
        for name, array in arrays.items():
            self._hashes.setdefault(name, hashlib.sha256()).update(value_bytes(array))

    def _refuse_changed(self, forms: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        """Rows of another shape than the ones before, or labels in some batches only."""
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


def _form(dtype: str, row: tuple[int, ...]) -> str:
    return f"{dtype} of shape [{', '.join(['rows', *map(str, row)])}]"
