"""Rows next to a split of a tree, and answers that differ there, are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lightgbm import LGBMRegressor
from onnx import numpy_helper
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlctl.core.errors import MlctlError
from mlctl.optimize.data import Rows
from mlctl.optimize.inputs.estimators import EstimatorReference, load_estimator
from mlctl.optimize.proofs.probing import probe_model
from mlctl.optimize.proofs.splits import SplitCheck, check_splits, near_splits, split_values
from mlctl.services.model.session import open_session
from tests.support.estimators import skops_source

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(600, 3)) * 10
TARGET = ROWS[:, 0] * 3 + ROWS[:, 1] ** 2


def checked(model: Any, rows: np.ndarray, folder: Path) -> SplitCheck | None:
    lightgbm = isinstance(model, LGBMRegressor)
    source = skops_source(model, folder, 3, lightgbm=lightgbm)
    reference = EstimatorReference(load_estimator(source))
    reference.export(folder, {"input": ROWS[:3]})
    inputs, graph = {"input": rows}, folder / "model.onnx"
    answers = open_session(graph).run(inputs)
    return check_splits(near_splits(graph, inputs), reference.run(inputs), answers)


def at_thresholds(pairs: list[tuple[int, float]]) -> np.ndarray:
    """Return two rows for each pair of a feature and a threshold: at it, and next to it."""
    rows = np.repeat(ROWS[: len(pairs)], 2, axis=0)
    for number, (feature, threshold) in enumerate(pairs):
        rows[2 * number : 2 * number + 2, feature] = threshold, np.nextafter(threshold, np.inf)
    return rows


def test_splits__answers_that_differ__are_counted() -> None:
    expected, found = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.1, 3.1])
    counted = check_splits(np.array([True, True, False]), {"y": expected}, {"y": found})
    assert counted == SplitCheck(rows=3, near=2, differ=2)
    assert counted.sentence == (
        "2 of 3 rows have a value that rounding can put on the other side of a split of a tree; "
        "2 answers differ from the source model's."
    )


def test_splits__features_that_a_step_computes__are_near_a_split(tmp_path: Path) -> None:
    trees = HistGradientBoostingRegressor(max_iter=8, random_state=0)
    scaler = StandardScaler()
    model = make_pipeline(scaler, trees).fit(ROWS, TARGET)
    nodes = np.concatenate([tree.nodes for (tree,) in trees._predictors])
    inner = nodes[nodes["is_leaf"] == 0][:60]
    scaled = [(int(node["feature_idx"]), float(node["num_threshold"])) for node in inner]
    pairs = [(at, value * scaler.scale_[at] + scaler.mean_[at]) for at, value in scaled]
    found = checked(model, at_thresholds(pairs), tmp_path)
    assert found == SplitCheck(rows=120, near=120, differ=0)


@pytest.mark.parametrize("scaled", [False, True])
def test_splits__float32_features__differ_nowhere(scaled: bool, tmp_path: Path) -> None:
    forest = RandomForestRegressor(2, max_depth=5, random_state=0)
    model = make_pipeline(StandardScaler(), forest) if scaled else forest
    model.fit(ROWS, TARGET)
    tree = forest.estimators_[0].tree_
    inner = np.flatnonzero(tree.feature >= 0)
    scale, mean = (model[0].scale_, model[0].mean_) if scaled else (np.ones(3), np.zeros(3))
    pairs = [
        (int(feature), float(threshold * scale[feature] + mean[feature]))
        for feature, threshold in zip(tree.feature[inner], tree.threshold[inner], strict=True)
    ]
    rows = at_thresholds(pairs)
    found = checked(model, rows, tmp_path)
    assert found is not None
    assert (found.rows, found.differ) == (2 * len(pairs), 0)
    # scikit-learn's thresholds are float64 numbers in the middle of two float32 ones.
    assert found.near >= len(pairs)


def test_splits__a_model_without_trees__is_not_checked(tmp_path: Path) -> None:
    assert checked(LinearRegression().fit(ROWS, TARGET), ROWS, tmp_path) is None


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(max_iter=8, random_state=0),
        LGBMRegressor(n_estimators=8, verbose=-1),
    ],
)
def test_splits__float64_numbers_at_a_float64_threshold__have_no_excuse(
    model: Any, tmp_path: Path
) -> None:
    model.fit(ROWS, TARGET)
    assert checked(model, ROWS, tmp_path) == SplitCheck(rows=600, near=0, differ=0)
    splits = split_values(tmp_path / "model.onnx", {"input": ROWS})
    pairs = [(feature or 0, value) for (_, feature), values in splits.items() for value in values]
    assert len(pairs) > 50
    rows = at_thresholds(pairs[: len(ROWS)])
    for nearby in (rows, np.nextafter(rows, -np.inf), rows.astype(np.float32).astype(np.float64)):
        assert checked(model, nearby, tmp_path) == SplitCheck(rows=len(rows), near=0, differ=0)


def test_probe_model__thresholds_one_step_off__names_the_column(tmp_path: Path) -> None:
    model = HistGradientBoostingRegressor(max_iter=8, random_state=0).fit(ROWS, TARGET)
    source = skops_source(model, tmp_path, 3)
    reference, path = EstimatorReference(load_estimator(source)), tmp_path / "model.onnx"
    reference.export(tmp_path, {"input": ROWS[:3]})
    graph = onnx.load(str(path))
    (tree,) = (node for node in graph.graph.node if node.op_type.startswith("TreeEnsemble"))
    (values,) = (each for each in tree.attribute if each.name == "nodes_values_as_tensor")
    moved = np.nextafter(numpy_helper.to_array(values.t), np.inf)
    values.t.CopyFrom(numpy_helper.from_array(moved))
    onnx.save_model(graph, str(path))
    rows = Rows({"input": ROWS}, None)
    arguments = (reference, open_session(path), path, source.signature, (rows, rows))
    with pytest.raises(MlctlError, match=r"'input\[0\]', a number next to a split of a tree: "):
        probe_model(*arguments, table=True, independent=True)
