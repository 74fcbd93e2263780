"""Rows next to a split of a tree, and answers that differ there, are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optimize.estimators import EstimatorReference, load_estimator
from optimize.proofs.splits import SplitCheck, check_splits, near_splits
from services.runtime.session import open_session
from tests.support.estimators import skops_source

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(600, 3)) * 10
TARGET = ROWS[:, 0] * 3 + ROWS[:, 1] ** 2


def checked(model: Any, rows: np.ndarray, folder: Path) -> SplitCheck | None:
    reference = EstimatorReference(load_estimator(skops_source(model, folder, 3)))
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


def test_splits__float64_thresholds__counts_the_answers_that_differ(tmp_path: Path) -> None:
    model = HistGradientBoostingRegressor(max_iter=8, random_state=0).fit(ROWS, TARGET)
    nodes = np.concatenate([tree.nodes for (tree,) in model._predictors])
    inner = nodes[nodes["is_leaf"] == 0][:60]
    pairs = [(int(node["feature_idx"]), float(node["num_threshold"])) for node in inner]
    found = checked(model, at_thresholds(pairs), tmp_path)
    assert found is not None
    assert (found.rows, found.near) == (120, 120)
    assert 12 <= found.differ <= 60
    assert found.sentence == (
        "120 of 120 rows have a value within one float32 step of a split of a tree; "
        f"{found.differ} answers differ from the source model's."
    )
    fresh = RNG.normal(size=(1000, 3)) * 10
    assert checked(model, fresh, tmp_path) == SplitCheck(rows=1000, near=0, differ=0)


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
    found = checked(model, at_thresholds(pairs), tmp_path)
    assert found == SplitCheck(rows=2 * len(pairs), near=2 * len(pairs), differ=0)


def test_splits__a_model_without_trees__is_not_checked(tmp_path: Path) -> None:
    assert checked(LinearRegression().fit(ROWS, TARGET), ROWS, tmp_path) is None
