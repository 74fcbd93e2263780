"""Evaluation data: rows from a file or a function, checked, sampled and split in bounded memory."""

from optimize.data.labels import LabelKind, require_labels
from optimize.data.load import load_data, read_rows
from optimize.data.rows import EvalData, Rows, Tensors, row_count
from optimize.data.sampling import MIN_ROWS, SEED, RowLimits, split

__all__ = [
    "MIN_ROWS",
    "SEED",
    "EvalData",
    "LabelKind",
    "RowLimits",
    "Rows",
    "Tensors",
    "load_data",
    "read_rows",
    "require_labels",
    "row_count",
    "split",
]
