"""Prove that a graph answers each given row as its source does."""

from __future__ import annotations

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.optimize.data import Tensors
from mlctl.optimize.proofs.differences import describe_difference, differing_rows
from mlctl.services.model.run_errors import RunError

_SHOWN = 5


def graph_fails(error: RunError) -> MlctlError:
    """Return EXPORT_FAILED for a graph that fails on rows that its source model takes."""
    return MlctlError(
        ErrorCode.EXPORT_FAILED,
        f"the graph does not run on rows of the data that the model takes: {first_line(error)}",
        "The converter of a step is at fault. Replace that step, or do its work before the model "
        "is called.",
    )


def check_given_rows(
    inputs: Tensors, expected: Tensors, found: Tensors, near: np.ndarray | None
) -> None:
    """Compare the answers to all rows; EXPORT_FAILED names the output, the rows and both answers.

    Rows next to a split of a tree (`near`, bool [rows]) may differ: there float32 decides.
    """
    for output, differs in differing_rows(expected, found).items():
        rows = np.flatnonzero(differs if near is None else differs & ~near)
        if not rows.size:
            continue
        shown = ", ".join(str(row) for row in rows[:_SHOWN])
        more = ", ..." if rows.size > _SHOWN else ""
        raise MlctlError(
            ErrorCode.EXPORT_FAILED,
            f"the graph is not the model: its output {output!r} differs from the source model's on "
            f"{rows.size} of {len(differs)} rows of the data ({shown}{more}; row {rows[0]}: "
            f"{describe_difference(expected, found, output, int(rows[0]))})"
            f"{_common_gap(inputs, rows)}",
            "Fill missing values and map odd ones in the pipeline before the step that takes them, "
            "or leave such rows out of the data: they are then rejected by the server.",
        )


def _common_gap(inputs: Tensors, rows: np.ndarray) -> str:
    """Return the columns that have no value in all of `rows`, in words; empty without any."""
    names = [name for name, array in inputs.items() if _is_missing(array[rows]).all()]
    return f"; none of them has a value in {', '.join(map(repr, names))}" if names else ""


def _is_missing(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(len(values), -1)
    if values.dtype == object:
        return np.asarray((flat == b"").all(axis=1))
    if values.dtype.kind != "f":
        return np.zeros(len(values), bool)
    return np.asarray(np.isnan(flat).all(axis=1))
