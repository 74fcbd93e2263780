"""Evaluation data: reading an .npz, checking it against the signature, splitting it.

The split is stratified by label and has a fixed seed, so the same file always gives
the same calibration and held-out rows. Pickled arrays are refused.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import canonical_json
from bundle.tensors import Datatype, Signature, TensorSpec

Tensors = Mapping[str, np.ndarray]

MIN_ROWS = 8
MAX_CALIBRATION_ROWS = 256
SEED = 20_240_229

_LABEL_KEYS = ("labels", "y")
_SINGLE_INPUT_KEYS = ("x", "inputs")


def row_count(tensors: Tensors) -> int:
    """The first dimension of the first tensor."""
    return len(next(iter(tensors.values())))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of every input, first dimension the row, with their integer labels if there are any."""

    inputs: Tensors
    labels: np.ndarray | None

    @property
    def count(self) -> int:
        return row_count(self.inputs)

    def take(self, index: np.ndarray) -> Rows:
        """The rows at `index`, in that order."""
        labels = None if self.labels is None else self.labels[index]
        return Rows({name: array[index] for name, array in self.inputs.items()}, labels)

    def head(self, count: int) -> Rows:
        """The first `count` rows, or all if there are fewer."""
        return self.take(np.arange(min(count, self.count)))


@dataclass(frozen=True, slots=True)
class EvalData:
    """Calibration rows, held-out rows, and the hex sha256 of all that was read."""

    calibration: Rows
    held_out: Rows
    sha256: str


def load_data(path: Path, signature: Signature) -> EvalData:
    """Read `path` and split it; INVALID_INPUT names the array and what was expected of it.

    Keys are the names of the inputs (or `x` or `inputs` for the only one), and
    `labels` or `y` for the labels: integers, one for each row.
    """
    arrays = _read(path)
    labels = _labels(arrays)
    inputs = {spec.name: _input(arrays, spec, signature) for spec in signature.inputs}
    rows = Rows(inputs, labels)
    _check_lengths(rows)
    first, second = split(rows)
    return EvalData(first, second, _sha256(rows))


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Calibration rows (a quarter, at most 256) and held-out rows.

    Both are in an order in which any first part holds each label in proportion.
    """
    order = np.random.default_rng(SEED).permutation(rows.count)
    wanted = min(MAX_CALIBRATION_ROWS, rows.count // 4)
    if rows.labels is not None:
        order = order[_interleaved(rows.labels[order])]
    return rows.take(order[:wanted]), rows.take(order[wanted:])


def _interleaved(labels: np.ndarray) -> np.ndarray:
    """An order in which any prefix holds each label in proportion to its frequency.

    The k-th of n rows of a label is placed at (k + 1/2) / n of the way.
    """
    place = np.empty(len(labels))
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        place[index] = (np.arange(len(index)) + 0.5) / len(index)
    return np.argsort(place, kind="stable")


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError as error:
        raise _invalid(f"there is no file {path}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = "it holds pickled objects" if "allow_pickle" in str(error) else "not an .npz"
        raise _invalid(f"{path.name} cannot be read: {reason}") from error
    raise _invalid(f"{path.name} holds a single array; save it with numpy.savez")


def _labels(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    key = next((name for name in _LABEL_KEYS if name in arrays), None)
    if key is None:
        return None
    labels = arrays[key]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise _invalid(
            f"array {key!r} must be integers of shape [rows], "
            f"it is {labels.dtype} of shape {list(labels.shape)}"
        )
    return labels.astype(np.int64)


def _input(arrays: Mapping[str, np.ndarray], spec: TensorSpec, signature: Signature) -> np.ndarray:
    names = (spec.name, *_SINGLE_INPUT_KEYS) if len(signature.inputs) == 1 else (spec.name,)
    key = next((name for name in names if name in arrays), None)
    if key is None:
        have = ", ".join(sorted(arrays)) or "none"
        raise _invalid(f"no array for input {spec.name!r} in the data; it has: {have}")
    array = arrays[key]
    try:
        datatype = Datatype.from_numpy_name(array.dtype.name)
    except ValueError as error:
        raise _invalid(f"array {key!r}: {error}") from error
    if problem := spec.mismatch(datatype, array.shape):
        raise _invalid(f"array {key!r} does not fit the model: {problem}")
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise _invalid(f"array {key!r} has NaN or infinite values")
    return array


def _check_lengths(rows: Rows) -> None:
    lengths = {name: len(array) for name, array in rows.inputs.items()}
    if rows.labels is not None:
        lengths["labels"] = len(rows.labels)
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise _invalid(f"the arrays have different numbers of rows: {listed}")
    if rows.count < MIN_ROWS:
        raise _invalid(f"the data has {rows.count} rows, at least {MIN_ROWS} are needed")


def _sha256(rows: Rows) -> str:
    arrays = dict(rows.inputs)
    described = {
        name: [array.dtype.str, list(array.shape), _content(array)]
        for name, array in arrays.items()
    }
    labels = None if rows.labels is None else _content(rows.labels)
    return hashlib.sha256(canonical_json([described, labels])).hexdigest()


def _content(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _invalid(message: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        message,
        "Save the rows with numpy.savez(FILE, INPUT_NAME=..., labels=...).",
    )
