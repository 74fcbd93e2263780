"""Payloads as Parquet: the columns that `mlctl.bundle.sampling` promises, whole files or none.

pyarrow is imported here only, and only by a server that records.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.sampling import (
    AT,
    DIGEST,
    INPUT_PREFIX,
    OUTPUT_PREFIX,
    REQUEST_ID,
    ROW,
    SEGMENT_SUFFIX,
    Sampling,
)
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.services.online.observability.calls import RecordedPayload

_TEMPORARY_SUFFIX = ".tmp"
# What a killed worker left unfinished.
_ABANDONED_SECONDS = 3600.0
_MICROSECONDS = 1e6


class SegmentWriter:
    """Writes the segments of one model to one folder, which other workers use, too."""

    def __init__(self, folder: Path, signature: Signature, digest: str) -> None:
        """RUNTIME_MISSING without pyarrow, INVALID_INPUT for a folder that cannot be used."""
        _require_pyarrow()
        self._folder = folder
        self._signature = signature
        self._digest = digest
        # Processes in different containers may have the same number.
        self._process = f"{os.getpid()}-{os.urandom(3).hex()}"
        self._numbers = count()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            writable = False
        if not writable:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"MLCTL_SAMPLE_DIR: {folder} is no folder to write to"
            )

    def write(self, payloads: Sequence[RecordedPayload], sampling: Sampling, now: float) -> int:
        """Write `payloads` as one segment at Unix time `now`; return its number of rows.

        OSError if it cannot be written, and then no file is left.
        """
        from pyarrow import parquet

        table = self._table(payloads, sampling)
        name = f"{int(now * 1e3):013d}-{self._process}-{next(self._numbers):06d}"
        temporary = self._folder / f".{name}{_TEMPORARY_SUFFIX}"
        try:
            parquet.write_table(table, temporary, compression="zstd")
            temporary.rename(self._folder / f"{name}{SEGMENT_SUFFIX}")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._trim(sampling.max_bytes)
        return int(table.num_rows)

    def _table(self, payloads: Sequence[RecordedPayload], sampling: Sampling) -> Any:
        import pyarrow as pa

        rows = [payload.rows for payload in payloads]
        times = [round(payload.at * _MICROSECONDS) for payload in payloads]
        total = sum(rows)
        columns = {
            REQUEST_ID: pa.array(np.repeat([payload.request_id for payload in payloads], rows)),
            ROW: pa.array(np.concatenate([np.arange(number, dtype=np.int32) for number in rows])),
            AT: pa.array(np.repeat(times, rows), pa.timestamp("us", "UTC")),
            DIGEST: pa.repeat(self._digest, total),
        }
        for name, spec in self._columns(sampling):
            side = "inputs" if name.startswith(INPUT_PREFIX) else "outputs"
            arrays = [getattr(payload, side)[spec.name] for payload in payloads]
            columns[name] = to_column(spec, arrays, batched=self._signature.batched)
        return pa.table(columns)

    def _columns(self, sampling: Sampling) -> Iterator[tuple[str, TensorSpec]]:
        sides = [(OUTPUT_PREFIX, self._signature.outputs)]
        if sampling.inputs:
            sides.insert(0, (INPUT_PREFIX, self._signature.inputs))
        for prefix, specs in sides:
            for spec in specs:
                if spec.name not in sampling.redact:
                    yield prefix + spec.name, spec

    def _trim(self, max_bytes: int) -> None:
        """Remove the oldest segments beyond `max_bytes`; another worker may do the same."""
        sizes: dict[Path, int] = {}
        for path in sorted(self._folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if path.suffix == SEGMENT_SUFFIX:
                    sizes[path] = path.stat().st_size
                elif path.suffix == _TEMPORARY_SUFFIX and _is_abandoned(path):
                    path.unlink()
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def to_column(spec: TensorSpec, arrays: Sequence[np.ndarray], *, batched: bool) -> Any:
    """Return the rows of `arrays`, one tensor of many requests, as a pyarrow array."""
    import pyarrow as pa

    if not batched:
        arrays = [array[np.newaxis] for array in arrays]
    sizes = spec.shape[1:] if batched else spec.shape
    parts: list[list[np.ndarray]] = []
    for array in arrays:  # requests of one form become one array, however many they are
        if parts and parts[-1][0].shape[1:] == array.shape[1:]:
            parts[-1].append(array)
        else:
            parts.append([array])
    return pa.concat_arrays([_nested(spec, np.concatenate(part), sizes) for part in parts])


def _nested(spec: TensorSpec, array: np.ndarray, sizes: Sequence[int]) -> Any:
    """Return `array` [rows, ...] as nested lists, of a fixed size where `sizes` has one."""
    import pyarrow as pa

    column = pa.array(*_values(spec, array))
    for axis in range(array.ndim - 1, 0, -1):
        size, lists = array.shape[axis], math.prod(array.shape[:axis])
        if sizes[axis - 1] not in (DYNAMIC, 0):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        else:
            offsets = np.arange(lists + 1, dtype=np.int32) * size
            column = pa.ListArray.from_arrays(offsets, column)
    return column


def _values(spec: TensorSpec, array: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the elements of `array` in row-major order, and their type in Arrow."""
    import pyarrow as pa

    flat = array.reshape(-1)
    if spec.dtype is Datatype.BYTES:
        return flat, pa.binary()
    if spec.dtype is Datatype.BF16:  # the upper half of a float32
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
    return flat, pa.from_numpy_dtype(flat.dtype)


def _is_abandoned(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "MLCTL_SAMPLE_DIR: recording needs the package pyarrow, which is not installed",
            f"{install_hint('sampling')}. Or unset the variable.",
        ) from error
