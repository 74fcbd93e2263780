"""Golden rows: recorded inputs and outputs of the source model, for warm-up and parity checks.

A `.npz` file with the keys `in.NAME` and `out.NAME`, read without pickle. BYTES tensors (object
arrays of bytes) are stored as fixed-width bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bundle.errors import ErrorCode, MlctlError

Arrays = dict[str, np.ndarray]


def save_golden(
    path: Path, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> None:
    """Write `inputs` and `outputs`; INVALID_INPUT for bytes that end in NUL, which numpy drops."""
    arrays = {f"in.{name}": _storable(name, array) for name, array in inputs.items()}
    arrays |= {f"out.{name}": _storable(name, array) for name, array in outputs.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_golden(path: Path) -> tuple[Arrays, Arrays]:
    """Return the inputs and outputs of a golden file; FILE_ALTERED if it cannot be read."""
    try:
        # If numpy opens a file that it cannot read, it leaves the file open.
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            names = getattr(stored, "files", ())  # none in a single array
            arrays = {name: _restored(stored[name]) for name in names}
    except Exception as error:  # numpy, zipfile, zlib and tokenize have no common root
        raise MlctlError(
            ErrorCode.FILE_ALTERED, f"{path.name} is not a file of golden rows"
        ) from error
    inputs = _side(arrays, "in.")
    outputs = _side(arrays, "out.")
    if not inputs or not outputs:
        raise MlctlError(ErrorCode.FILE_ALTERED, f"{path.name} has no inputs or no outputs")
    return inputs, outputs


def _side(arrays: Arrays, prefix: str) -> Arrays:
    return {
        key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)
    }


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return array
    if any(value.endswith(b"\0") for value in array.flat):
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"tensor {name!r}: bytes that end in NUL cannot be recorded"
        )
    return array.astype(np.bytes_)


def _restored(array: np.ndarray) -> np.ndarray:
    return array.astype(object) if array.dtype.kind == "S" else array
