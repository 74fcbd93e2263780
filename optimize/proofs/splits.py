"""Find rows next to a split of a tree, where a rounding difference changes the answer completely.

Some libraries compare features with thresholds in float64 and their graphs in float32, so a value
within one float32 step of a threshold can take another branch. That excuses values that float32
does not hold and values that the graph computes, but not a float32 number that it compares as it
was given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.optimize.data import Tensors
from mlctl.services.model.session import open_session

# An input, and a feature of its matrix; None for an input of one value per row.
Column = tuple[str, int | None]

# Relative to the largest value of an output: float32 arithmetic explains less.
_NEAR = 1e-5


class SplitCheck(BaseModel):
    """Of `rows` rows, how many lie next to a split, and how many answers of the graph differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    near: int
    differ: int

    @property
    def sentence(self) -> str:
        """Return the numbers for a report."""
        return (
            f"{self.near:,} of {self.rows:,} rows have a value that rounding can put on the other "
            f"side of a split of a tree; {self.differ:,} answers differ from the source model's."
        )


def check_splits(near: np.ndarray | None, expected: Tensors, found: Tensors) -> SplitCheck | None:
    """Count the rows `near` a split and the answers that differ; None for a graph without trees."""
    if near is None:
        return None
    differ = np.zeros(len(near), bool)
    for name, array in expected.items():
        differ |= _differing(array, found[name])
    return SplitCheck(rows=len(near), near=int(near.sum()), differ=int(differ.sum()))


def near_splits(graph: Path, inputs: Tensors) -> np.ndarray | None:
    """Return which rows may be on another side of a split, bool [rows]; None without trees.

    These rows have a value within one float32 step of a threshold that rounding may have changed.
    """
    near = np.zeros(len(next(iter(inputs.values()))), bool)
    given = dict(_given(inputs))
    found = False
    for column, thresholds in _compared(graph, inputs):
        found = True
        name = given.get(_in_float32(column))
        if name is None:
            exact = np.zeros(len(column), bool)
        else:
            exact = _compared_exactly(_values(inputs, name), column, thresholds)
        near |= _next_to(column, thresholds) & ~exact
    return near if found else None


def split_values(graph: Path, inputs: Tensors) -> dict[Column, np.ndarray]:
    """Return the thresholds of each column of `inputs` that trees compare as it was given."""
    given = dict(_given(inputs))
    found: dict[Column, np.ndarray] = {}
    for column, thresholds in _compared(graph, inputs):
        name = given.get(_in_float32(column))
        if name is not None:
            found[name] = np.union1d(found.get(name, thresholds), thresholds)
    return found


def _compared(graph: Path, inputs: Tensors) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each feature that trees of the graph compare, [rows], with its thresholds."""
    import onnx

    model = onnx.load(str(graph))
    trees = [node for node in model.graph.node if node.op_type.startswith("TreeEnsemble")]
    if not trees:
        return
    outputs = {value.name for value in model.graph.output}
    features = {node.input[0] for node in trees}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in features - outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, MODEL_NAME)
        onnx.save_model(model, str(path))
        found = open_session(path).run(inputs)
    for node in trees:
        for feature, thresholds in _thresholds(node):
            yield found[node.input[0]][:, feature], thresholds


def _given(inputs: Tensors) -> Iterator[tuple[bytes, Column]]:
    """Yield the numbers of each column in float32, and the column."""
    for name, array in inputs.items():
        if array.dtype.kind in "fiub" and array.ndim <= 2:
            alone = array.ndim == 1 or array.shape[1] == 1
            for column in ((name, at) for at in ((None,) if alone else range(array.shape[1]))):
                yield _in_float32(_values(inputs, column)), column


def _values(inputs: Tensors, column: Column) -> np.ndarray:
    name, feature = column
    array = inputs[name]
    return array.reshape(len(array)) if feature is None else array[:, feature]


def _in_float32(values: np.ndarray) -> bytes:
    """Return the numbers as bytes; equal ones for NaN of any kind, and for 0 of either sign."""
    found = values.astype(np.float32) + np.float32(0)
    return np.where(np.isnan(found), np.float32(np.nan), found).tobytes()


def _compared_exactly(given: np.ndarray, column: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return which numbers of an input are compared without rounding, [rows]."""
    exact = column == given
    if thresholds.dtype == np.float32:
        exact &= given.astype(np.float32) == given
    return np.asarray(exact)


def _thresholds(node: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each feature that the trees compare, with its thresholds in ascending order."""
    from onnx import helper, numpy_helper

    values = {each.name: each for each in node.attribute}
    if "nodes_values_as_tensor" in values:
        thresholds = numpy_helper.to_array(values["nodes_values_as_tensor"].t)
    else:
        thresholds = np.array(helper.get_attribute_value(values["nodes_values"]), np.float32)
    features = np.array(helper.get_attribute_value(values["nodes_featureids"]))
    inner = np.array(helper.get_attribute_value(values["nodes_modes"])) != b"LEAF"
    for feature in np.unique(features[inner]):
        yield int(feature), np.unique(thresholds[inner & (features == feature)])


def _next_to(column: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return which values are at most one float32 step from a threshold, [rows]."""
    found = np.zeros(len(column), bool)
    above = np.searchsorted(thresholds, column)
    for index in (above - 1, above):
        nearest = thresholds[np.clip(index, 0, len(thresholds) - 1)]
        found |= np.abs(column - nearest) <= np.spacing(np.abs(nearest).astype(np.float32))
    return found


def _differing(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return which rows differ by more than float32 arithmetic explains, [rows]."""
    if expected.dtype.kind != "f":
        differs = expected != found
    else:
        allowed = _NEAR * float(np.abs(expected).max(initial=0.0))
        differs = np.abs(expected - found) > allowed
    rows: np.ndarray = differs.reshape(len(expected), -1).any(axis=1)
    return rows
