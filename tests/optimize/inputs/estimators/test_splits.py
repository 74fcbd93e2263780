"""Values next to a split: the graph takes the side that scikit-learn's own trees take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor, VotingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlctl.optimize.inputs.estimators import EstimatorReference, load_estimator
from mlctl.services.model.session import open_session
from tests.support.estimators import skops_source

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(600, 3)) * 10


def next_to_splits(model: Any, scale: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return rows with one feature at a threshold, and one step of either type beside it."""
    rows: list[np.ndarray] = []
    for tree in (each.tree_ for each in model.estimators_):
        for feature, threshold in zip(tree.feature, tree.threshold, strict=True):
            if feature < 0:
                continue
            value = threshold * scale[feature] + mean[feature]
            short = np.float32(value)
            for near in (
                value,
                np.nextafter(value, np.inf),
                np.nextafter(value, -np.inf),
                float(short),
                float(np.nextafter(short, np.float32(np.inf))),
                float(np.nextafter(short, np.float32(-np.inf))),
            ):
                row = ROWS[len(rows) % len(ROWS)].copy()
                row[feature] = near
                rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("where", ["alone", "scaled", "voting"])
def test_forest__features_next_to_a_split__takes_the_same_side(where: str, tmp_path: Path) -> None:
    forest = RandomForestRegressor(3, max_depth=6, random_state=0)
    model: Any = forest
    if where == "scaled":
        model = make_pipeline(StandardScaler(), forest)
    if where == "voting":  # its trees get float64
        model = VotingRegressor([("forest", forest)])
    model.fit(ROWS, ROWS[:, 0] * 3 + ROWS[:, 1] ** 2)
    scale, mean = np.ones(3), np.zeros(3)
    if where == "voting":
        forest = model.estimators_[0]
    if where == "scaled":
        scale, mean = model[0].scale_, model[0].mean_
    inputs = {"input": next_to_splits(forest, scale, mean)}
    reference = EstimatorReference(load_estimator(skops_source(model, tmp_path, 3)))
    reference.export(tmp_path, {"input": ROWS[:3]})
    found = open_session(tmp_path / "model.onnx").run(inputs)["prediction"]
    want = reference.run(inputs)["prediction"]
    assert len(want) > 300
    assert np.abs(found - want).max() <= 1e-6 * np.abs(want).max()


def test_bagging__a_split_of_missing_values_only__converts(tmp_path: Path) -> None:
    """Such a split is at infinity, where skl2onnx's search for a float64 does not end."""
    rows = ROWS[:200].copy()
    rows[::4, 0] = np.nan
    model = BaggingRegressor(n_estimators=3, random_state=0)
    model.fit(rows, np.isnan(rows[:, 0]) * 100 + rows[:, 1])
    assert any(np.isinf(each.tree_.threshold).any() for each in model.estimators_)
    reference = EstimatorReference(load_estimator(skops_source(model, tmp_path, 3)))
    reference.export(tmp_path, {"input": rows[:3]})
    found = open_session(tmp_path / "model.onnx").run({"input": rows})["prediction"]
    want = reference.run({"input": rows})["prediction"]
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
