"""Evaluation data: rows from a file or a function, checked, sampled and split in bounded memory."""

from mlctl.optimize.data.load import load_data, read_rows
from mlctl.optimize.data.rows import (
    MIN_ROWS,
    SEED,
    EvalData,
    RowLimits,
    Rows,
    Tensors,
    row_bytes,
    row_count,
)

__all__ = [
    "MIN_ROWS",
    "SEED",
    "EvalData",
    "RowLimits",
    "Rows",
    "Tensors",
    "load_data",
    "read_rows",
    "row_bytes",
    "row_count",
]
