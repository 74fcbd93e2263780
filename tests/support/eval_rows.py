"""Evaluation data in every form that `load_data` takes, and its bad forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.optimize.data import Tensors


def signature(*shape: int, dtype: Datatype = Datatype.FP32, name: str = "image") -> Signature:
    """One input [rows, *shape]."""
    return Signature(
        inputs=(TensorSpec(name=name, dtype=dtype, shape=(DYNAMIC, *shape)),),
        outputs=(TensorSpec(name="scores", dtype=Datatype.FP32, shape=(DYNAMIC, 3)),),
    )


TOKENS = Signature(
    inputs=(
        TensorSpec(name="ids", dtype=Datatype.INT64, shape=(DYNAMIC, DYNAMIC)),
        TensorSpec(name="mask", dtype=Datatype.INT64, shape=(DYNAMIC, DYNAMIC)),
    ),
    outputs=(TensorSpec(name="scores", dtype=Datatype.FP32, shape=(DYNAMIC, 3)),),
)


@dataclass(frozen=True, slots=True)
class Batches:
    """A source in memory, cut into chunks of `size` rows."""

    arrays: Tensors
    size: int
    name: str = "memory"

    def chunks(self) -> Iterator[Tensors]:
        for start in range(0, len(next(iter(self.arrays.values()))), self.size):
            stop = start + self.size
            yield {name: array[start:stop] for name, array in self.arrays.items()}


def save_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Write columns (Arrow arrays or lists) as Parquet, and return the path."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, **options)
    return path


def flat_lists(array: np.ndarray) -> Any:
    """Rows of numbers as an Arrow column of fixed-size lists."""
    import pyarrow as pa

    values = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, int(np.prod(array.shape[1:])))
