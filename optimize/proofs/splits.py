"""Count rows next to a split of a tree, where a rounding difference changes the answer completely.

Some libraries compare features with thresholds in float64 and their graphs in float32, so a value
within one float32 step of a threshold can take another branch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from bundle.manifest import MODEL_NAME
from optimize.data import Tensors
from services.runtime.session import open_session

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
            f"{self.near:,} of {self.rows:,} rows have a value within one float32 step of a "
            f"split of a tree; {self.differ:,} answers differ from the source model's."
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
    """Return which rows are within one float32 step of a split, bool [rows]; None without trees."""
    import onnx

    model = onnx.load(str(graph))
    trees = [node for node in model.graph.node if node.op_type.startswith("TreeEnsemble")]
    if not trees:
        return None
    outputs = {value.name for value in model.graph.output}
    features = {node.input[0] for node in trees}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in features - outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, MODEL_NAME)
        onnx.save_model(model, str(path))
        found = open_session(path).run(inputs)
    near = np.zeros(len(next(iter(inputs.values()))), bool)
    for node in trees:
        for feature, thresholds in _thresholds(node):
            near |= _next_to(found[node.input[0]][:, feature], thresholds)
    return near


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
