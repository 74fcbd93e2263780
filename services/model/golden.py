"""Golden rows: recorded inputs and outputs of the source model, for warm-up and parity checks.

A `.npz` file with the keys `in.NAME` and `out.NAME`, and `feature.NAME` for values that a transform
looks up. It is read without pickle. BYTES tensors (object arrays of bytes) are stored as
fixed-width bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError


def save_golden(
    path: Path,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    features: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Write the arrays; INVALID_INPUT for bytes that end in NUL, which numpy drops."""
    sides = {"in.": inputs, "out.": outputs, "feature.": features}
    arrays = {
        f"{prefix}{name}": _storable(name, array)
        for prefix, side in sides.items()
        for name, array in side.items()
    }
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_golden(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the inputs and outputs of a golden file; FILE_ALTERED if it cannot be read."""
    arrays = _load(path)
    return _side(arrays, "in."), _side(arrays, "out.")


def load_golden_features(path: Path) -> dict[str, np.ndarray]:
    """Return the values that were looked up for the inputs of a golden file; none for most."""
    return _side(_load(path), "feature.")


def _load(path: Path) -> dict[str, np.ndarray]:
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
    if not _side(arrays, "in.") or not _side(arrays, "out."):
        raise MlctlError(ErrorCode.FILE_ALTERED, f"{path.name} has no inputs or no outputs")
    return arrays


def _side(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
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
