"""Estimators of every kind: the graph answers like the estimator on 1,000 fresh rows.

A model is accepted with its worst difference, or rejected with the sentence in the table.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier, XGBRegressor

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.inputs.estimators import EstimatorReference, load_estimator
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.services.model.session import open_session
from mlctl.services.online.http.predict import read_records
from tests.support.estimators import (
    COLUMNS,
    as_inputs,
    customers,
    file_source,
    skops_source,
    spending,
)

pytestmark = pytest.mark.slow

TRAIN, FRESH = 600, 1000
# Differences relative to the largest value: float64 throughout, or float32 in trees.
DOUBLE, SINGLE = 1e-12, 2e-6


def encoded(last: Any) -> Pipeline:
    """The pipeline of the documentation: imputers, scaling, one-hot encoding, an estimator."""
    text = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = [("n", numbers, ["age", "visits"]), ("t", text, ["city", "plan"])]
    first = ColumnTransformer([*columns, ("v", "passthrough", ["vip"])])
    return Pipeline([("columns", first), ("last", last)])


TABLE: dict[str, tuple[Any, float]] = {
    "logistic": (LogisticRegression(), DOUBLE),
    "linear": (LinearRegression(), DOUBLE),
    "ridge": (Ridge(), DOUBLE),
    "decision tree": (DecisionTreeRegressor(random_state=0), SINGLE),
    "random forest": (RandomForestClassifier(20, random_state=0), SINGLE),
    "random forest regressor": (RandomForestRegressor(20, random_state=0), SINGLE),
    "gradient boosting": (GradientBoostingClassifier(n_estimators=20, random_state=0), SINGLE),
    "gradient boosting regressor": (
        GradientBoostingRegressor(n_estimators=20, random_state=0),
        SINGLE,
    ),
    "hist boosting": (HistGradientBoostingClassifier(max_iter=20, random_state=0), SINGLE),
    "hist boosting regressor": (HistGradientBoostingRegressor(max_iter=20, random_state=0), SINGLE),
    "isolation forest": (IsolationForest(random_state=0), SINGLE),
    "k-means": (KMeans(3, n_init=1, random_state=0), DOUBLE),
    "support vectors": (SVC(random_state=0), DOUBLE),
    "linear support vectors": (LinearSVC(random_state=0), DOUBLE),
    "neural net": (MLPClassifier((8,), max_iter=500, tol=1e-2, random_state=0), DOUBLE),
}
_CAT = {"iterations": 20, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
MATRIX: dict[str, tuple[Any, float]] = {
    "bare logistic": (LogisticRegression(), DOUBLE),
    "bare tree": (DecisionTreeClassifier(max_depth=5, random_state=0), SINGLE),
    "bare extra trees": (ExtraTreesRegressor(10, random_state=0), SINGLE),
    "scaled stochastic gradient": (
        make_pipeline(MinMaxScaler(), SGDClassifier(loss="log_loss", random_state=0)),
        SINGLE,
    ),
    "components": (make_pipeline(StandardScaler(), PCA(2), LinearRegression()), DOUBLE),
    "outliers in some features": (
        IsolationForest(n_estimators=50, max_features=0.5, contamination=0.1, random_state=0),
        SINGLE,
    ),
    "naive Bayes": (GaussianNB(), SINGLE),
    "xgboost": (XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1), SINGLE),
    "xgboost regressor": (XGBRegressor(n_estimators=20, max_depth=3, n_jobs=1), SINGLE),
    "lightgbm": (LGBMClassifier(n_estimators=20, verbose=-1, n_jobs=1), SINGLE),
    "lightgbm regressor": (LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1), SINGLE),
    "catboost": (CatBoostClassifier(**_CAT), SINGLE),
    "catboost regressor": (CatBoostRegressor(**_CAT), SINGLE),
}


def worst_difference(source: SourceModel, inputs: dict[str, np.ndarray], folder: Path) -> float:
    """Convert the model; return the worst relative difference at batches of 1, 7 and 64.

    Labels must be equal, and so must the answers to a row in any batch.
    """
    estimator = load_estimator(source)
    reference = EstimatorReference(estimator)
    reference.export(folder, {name: array[:3] for name, array in inputs.items()})
    session, want = open_session(folder / "model.onnx"), reference.run(inputs)
    assert list(want) == [spec.name for spec in estimator.source.signature.outputs]
    worst = 0.0
    for batch in (1, 7, 64):
        starts = range(0, FRESH, batch)
        parts = [
            session.run({name: array[at : at + batch] for name, array in inputs.items()})
            for at in starts
        ]
        for name, array in want.items():
            found = np.concatenate([part[name] for part in parts])
            assert found.shape == array.shape
            assert found.dtype == array.dtype
            if array.dtype.kind == "f":
                assert np.isfinite(found).all()
                worst = max(worst, float(np.abs(found - array).max() / np.abs(array).max()))
            else:
                assert np.array_equal(found, array), f"{(found != array).sum()} labels differ"
    return worst


@pytest.mark.parametrize("name", TABLE)
def test_pipeline__missing_values_and_unseen_categories__answers_like_the_source(
    name: str, tmp_path: Path
) -> None:
    last, limit = TABLE[name]
    rows = customers(TRAIN, 1)
    target: Any = spending(rows)
    if is_classifier(last):
        target = np.where(target > 70, "stay", "leave")
    model = encoded(last).fit(rows, target)
    source = skops_source(model, tmp_path, COLUMNS)
    fresh = as_inputs(customers(FRESH, 2, unseen=True))
    assert worst_difference(source, fresh, tmp_path) <= limit


def test_records__missing_values_and_unseen_categories__answer_like_the_source(
    tmp_path: Path,
) -> None:
    rows, fresh = customers(TRAIN, 1), customers(FRESH, 2, unseen=True)
    model = encoded(LogisticRegression()).fit(rows, spending(rows) > 70)
    estimator = load_estimator(skops_source(model, tmp_path, COLUMNS))
    EstimatorReference(estimator).export(tmp_path, as_inputs(fresh.head(3)))
    # JSON has null; a row may also leave the column out.
    table = fresh.astype(object).where(fresh.notna(), None)
    records = json.loads(json.dumps(table.to_dict("records")))
    for record in records[::2]:
        for name in [name for name, value in record.items() if value is None]:
            del record[name]
    assert {len(record) for record in records} == {4, 5}
    source = estimator.source
    inputs = read_records(records, source.signature, source.missing)
    found = open_session(tmp_path / "model.onnx").run(inputs)
    np.testing.assert_allclose(
        found["probabilities"], model.predict_proba(fresh), rtol=0, atol=DOUBLE
    )


@pytest.mark.parametrize("name", MATRIX)
def test_matrix__fresh_rows__answers_like_the_source(name: str, tmp_path: Path) -> None:
    model, limit = MATRIX[name]
    rng = np.random.default_rng(3)
    rows, fresh = rng.normal(size=(TRAIN, 4)), rng.normal(size=(FRESH, 4))
    target = rows[:, 0] * 3 + rows[:, 1] ** 2
    model.fit(rows, (target > 1).astype(int) if is_classifier(model) else target)
    if name.startswith("xgboost"):
        path = tmp_path / "model.ubj"
        model.save_model(path)
        source = file_source(path, ModelFormat.XGBOOST, 4)
    elif name.startswith("catboost"):
        model.save_model(tmp_path / "model.cb")
        source = file_source(tmp_path / "model.cb", ModelFormat.CATBOOST, 4)
    else:
        source = skops_source(model, tmp_path, 4, lightgbm=name.startswith("lightgbm"))
    assert worst_difference(source, {"input": fresh}, tmp_path) <= limit


REJECTED: dict[str, tuple[Callable[[], Any], str]] = {
    "own function": (
        lambda: make_pipeline(FunctionTransformer(_own), LinearRegression()),
        "contains types that are not loaded: .*_own",
    ),
    "neighbours": (KNeighborsClassifier, "types that are not loaded: .*KDTree"),
    "transformer": (StandardScaler, "StandardScaler is no classifier"),
    "two targets of classes": (DecisionTreeClassifier, "several labels in a row"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_estimator__not_supported__is_rejected_with_the_reason(name: str, tmp_path: Path) -> None:
    make, reason = REJECTED[name]
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(60, 3))
    target = (rows[:, 0] > 0).astype(int)
    if name == "two targets of classes":
        target = np.stack([target, 1 - target], axis=1)
    source = skops_source(make().fit(rows, target), tmp_path, 3)
    with pytest.raises(MlctlError, match=reason) as caught:
        worst_difference(source, {"input": rows}, tmp_path)
    assert caught.value.code in (ErrorCode.UNSUPPORTED_MODEL, ErrorCode.EXPORT_FAILED)


def test_catboost__categories__are_rejected_with_the_names_of_the_features(
    tmp_path: Path,
) -> None:
    rows = customers(60, 1)[["visits", "city", "plan"]].fillna("unknown")
    model = CatBoostClassifier(**_CAT, cat_features=["city", "plan"])
    model.fit(rows, rows["visits"] > 3).save_model(tmp_path / "model.cb")
    columns = {name: COLUMNS[name] for name in rows}
    source = file_source(tmp_path / "model.cb", ModelFormat.CATBOOST, columns)
    with pytest.raises(MlctlError, match=r"numeric features only.*: city, plan") as caught:
        load_estimator(source)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_calibrated__classes__answers_like_the_source(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows, fresh = rng.normal(size=(TRAIN, 3)), rng.normal(size=(FRESH, 3))
    model = CalibratedClassifierCV(LogisticRegression(), cv=2).fit(rows, rows[:, 0] > 0)
    source = skops_source(model, tmp_path, 3)
    assert worst_difference(source, {"input": fresh}, tmp_path) <= SINGLE


def _own(rows: np.ndarray) -> np.ndarray:
    return rows
