"""The path through a batch job: the rows as a table, and the answers of its parts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.parity.paths import text_limitation
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import ErrorLimit, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.layout.scorable import Scorable
from mlctl.services.model.scorer import join_rows, split_rows

if TYPE_CHECKING:
    import pyarrow as pa

_ROW = "mlctl_row"
# Rows of a piece: a multiple of the request size, so that its calls are the same requests.
_PIECE_ROWS = 4096


class BatchPath:
    """`mlctl batch run` from Parquet to Parquet; each call of the model is one request."""

    name = "batch"

    def __init__(self, model: Scorable) -> None:
        self._model = model
        self._signature = model.signature

    def limitation(self, arrays: Arrays) -> str | None:
        if not self._signature.batched:
            return "the model has no batch dimension"
        for spec in (*self._signature.inputs, *self._signature.outputs):
            if spec.shape[1:].count(DYNAMIC) > 1:
                return f"{spec.name!r} has several open dimensions, which a column cannot keep"
        return text_limitation(arrays)

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:
        inputs = join_rows([dict(each) for each in requests])
        with tempfile.TemporaryDirectory(prefix="mlctl-parity-") as folder:
            table = self._score(inputs, size, Path(folder))
        outputs = {spec.name: from_column(spec, table) for spec in self._signature.outputs}
        return list(split_rows(outputs, size))

    def _score(self, inputs: Arrays, size: int, folder: Path) -> pa.Table:
        import pyarrow as pa
        from pyarrow import parquet

        columns = {spec.name: to_column(spec, inputs[spec.name]) for spec in self._signature.inputs}
        numbers = pa.array(np.arange(len(next(iter(inputs.values())))))
        rows = max(1, _PIECE_ROWS // size) * size
        file = folder / "rows.parquet"
        parquet.write_table(pa.table({_ROW: numbers, **columns}), file, row_group_size=rows)
        run_job(
            self._model,
            open_source(str(file)),
            open_sink(str(folder / "answers")),
            BatchConfig(map=tuple(f"{name}={name}" for name in columns), keep=(_ROW,)),
            local_executor(None),
            RunControl(limit=ErrorLimit(count=0)),
            batch_rows=size,
            piece_rows=rows,
        )
        parts = sorted((folder / "answers").glob("part-*.parquet"))
        found = pa.concat_tables([parquet.read_table(part) for part in parts]).sort_by(_ROW)
        if found.column(_ROW).to_numpy().tolist() != numbers.to_numpy().tolist():
            raise MlctlError(
                ErrorCode.PARITY_FAILED, f"{found.num_rows} answers for {len(numbers)} rows"
            )
        return found


def to_column(spec: TensorSpec, array: np.ndarray) -> pa.Array:
    """Return a column of numbers or text, or of one list per row, flat in row-major order."""
    import pyarrow as pa

    flat = np.ascontiguousarray(array).reshape(-1)
    if spec.dtype is Datatype.BYTES:
        values = pa.array([value.decode() for value in flat], pa.string())
    else:
        values = pa.array(flat)
    if len(spec.shape) == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(values, len(flat) // len(array))


def from_column(spec: TensorSpec, table: pa.Table) -> np.ndarray:
    """Return the tensor in the column of its name."""
    import pyarrow as pa

    column = table.column(spec.name).combine_chunks()
    while pa.types.is_nested(column.type):
        column = column.flatten()
    if spec.dtype is Datatype.BYTES:
        values = np.array([text.encode() for text in column.to_pylist()], object)
    else:
        values = column.to_numpy(zero_copy_only=False)
    return values.reshape(table.num_rows, *spec.shape[1:])
