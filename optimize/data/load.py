"""Two passes over a source: the first checks and counts, the second gathers the chosen rows.

Memory holds one chunk, the labels, and the chosen rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mlctl.bundle.tensors import NO_MISSING, MissingValues, Signature
from mlctl.core.canonical import canonical_json
from mlctl.core.os_errors import translate_os_error
from mlctl.optimize.data.check import Pass
from mlctl.optimize.data.function import FunctionSource
from mlctl.optimize.data.npz import NpzSource
from mlctl.optimize.data.parquet import FolderSource, ParquetRows, open_folder
from mlctl.optimize.data.rows import MIN_ROWS, EvalData, RowLimits, Rows, choose_rows
from mlctl.optimize.data.source import (
    NO_MAP,
    NO_PAD,
    ColumnMap,
    Pad,
    RowSource,
    invalid,
)
from mlctl.optimize.data.user_functions import is_function_name

_FORMS_HINT = (
    "Give an .npz or .parquet file, a folder of .parquet files, "
    "or a function as package.module:function."
)


def load_data(
    source: str | Path,
    signature: Signature,
    sampling: RowLimits | None = None,
    missing: MissingValues = NO_MISSING,
    columns: ColumnMap = NO_MAP,
    pad: Pad | None = None,
) -> EvalData:
    """Read evaluation rows from an .npz, Parquet or `package.module:function`.

    Arrays or columns are named as the inputs (the only input may be `x` or `inputs`),
    with `labels`, `label` or `y` for the labels; a folder is read as the Parquet files in it,
    which may be a server's samples. INVALID_INPUT names the array and its expected form, and
    values or arrays that `missing` does not allow to be missing. `columns` are for Parquet. Rows of
    inputs in `pad` may differ in length: they are filled up to the longest, as the server does.
    """
    found = open_source(source, signature, missing, columns)
    return read_rows(found, signature, sampling or RowLimits(), missing, pad or NO_PAD)


def open_source(
    source: str | Path,
    signature: Signature,
    missing: MissingValues = NO_MISSING,
    columns: ColumnMap = NO_MAP,
) -> RowSource:
    """Return the source at `source` by its content; INVALID_INPUT if it is none."""
    found = _open(source, signature, missing, columns)
    if columns and not isinstance(found, ParquetRows | FolderSource):
        raise invalid(
            f"--map is for the columns of Parquet files; {found.name!r} gives arrays",
            "Name the arrays as the model's inputs.",
        )
    return found


def _open(
    source: str | Path, signature: Signature, missing: MissingValues, columns: ColumnMap
) -> RowSource:
    path = Path(source)
    if isinstance(source, str) and is_function_name(source) and not path.exists():
        return FunctionSource(source)
    if path.is_dir():
        return open_folder(path, signature, missing, columns)
    magic = _first_bytes(path)
    if magic.startswith(b"PK"):
        return NpzSource(path)
    if magic.startswith(b"PAR1"):
        return ParquetRows(path, signature, missing=missing, columns=columns)
    if magic.startswith(b"\x93NUMPY"):
        raise invalid(f"{path.name} holds a single array; save it with numpy.savez")
    raise invalid(f"{path.name} is neither an .npz nor a Parquet file", _FORMS_HINT)


def read_rows(
    source: RowSource,
    signature: Signature,
    sampling: RowLimits,
    missing: MissingValues = NO_MISSING,
    pad: Pad = NO_PAD,
) -> EvalData:
    """Check all rows of `source` and return those that `sampling` chooses."""
    first = Pass(source, signature, missing, pad)
    parts = [chunk.labels for chunk in first.chunks() if chunk.labels is not None]
    if first.rows < MIN_ROWS:
        raise invalid(f"the data has {first.rows} rows (minimum {MIN_ROWS})")
    labels = np.concatenate(parts) if parts else None
    calibration, held_out = choose_rows(first.rows, labels, sampling)
    second = Pass(source, signature, missing, pad, first.lengths)
    index = np.concatenate([calibration, held_out])
    inputs = _gather(second, index, first.rows)
    if inputs is None or second.sha256() != first.sha256():
        raise invalid(
            f"{source.name!r} gave other rows when it was read again",
            "A function must return the same rows at each call: fix its seeds and its order.",
        )
    content = canonical_json([first.sha256(), asdict(sampling)])
    chosen = Rows(inputs, None if labels is None else labels[index])
    cut = len(calibration)
    return EvalData(
        calibration=chosen.take(slice(0, cut)),
        held_out=chosen.take(slice(cut, None)),
        sha256=hashlib.sha256(content).hexdigest(),
        rows=first.rows,
    )


def _gather(second: Pass, index: np.ndarray, rows: int) -> dict[str, np.ndarray] | None:
    """Return the inputs' rows at `index`; None if the source no longer has `rows` rows."""
    position = np.full(rows, -1)
    position[index] = np.arange(len(index))
    inputs: dict[str, np.ndarray] = {}
    for chunk in second.chunks():
        targets = position[second.rows : second.rows + chunk.count]
        if len(targets) < chunk.count:
            return None
        chosen = targets >= 0
        for name, array in chunk.inputs.items():
            if name not in inputs:
                inputs[name] = np.empty((len(index), *array.shape[1:]), array.dtype)
            inputs[name][targets[chosen]] = array[chosen]
    return inputs if second.rows == rows else None


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except FileNotFoundError as error:
        raise invalid(f"no file {path}", _FORMS_HINT) from error
    except OSError as error:
        fault = translate_os_error(error) or invalid(f"{path} cannot be read: {error.strerror}")
        raise fault from error
