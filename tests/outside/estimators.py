"""Cases made of scikit-learn's own list of estimators and transformers.

Each predictor is the last step of a pipeline on a table with gaps, texts and categories, and also
stands alone on a table of numbers. Each transformer is the first step of a pipeline.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.utils import all_estimators

from tests.outside.case import Case, Source
from tests.outside.tables import (
    Table,
    classes,
    customers,
    estimator_source,
    numbers,
    spending,
)

CLASSIFIERS, REGRESSORS = "scikit-learn classifiers", "scikit-learn regressors"
OTHERS, TRANSFORMERS = "scikit-learn clusterers, outliers and others", "scikit-learn transformers"

# Not a model of rows: they take targets, dictionaries, pictures or kernels, or are a part of all
# other cases. skops cannot store Birch, and no pipeline takes PLSSVD.
LEFT_OUT = frozenset(
    {
        *("LabelBinarizer", "LabelEncoder", "MultiLabelBinarizer", "DictVectorizer"),
        *("FeatureHasher", "PatchExtractor", "KernelCenterer", "Pipeline", "ColumnTransformer"),
        *("Birch", "PLSSVD"),
    }
)
_LIGHT: Mapping[str, Any] = {"n_estimators": 8, "random_state": 0, "n_init": 1, "n_jobs": None}
_PAIR: Any = [("a", LinearRegression()), ("b", Ridge())]
_CLASSES: Any = [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))]
# Arguments of those that do not go without, or not with so few rows.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "ClassifierChain": {"estimator": LogisticRegression()},
    "FixedThresholdClassifier": {"estimator": LogisticRegression()},
    "MultiOutputClassifier": {"estimator": LogisticRegression()},
    "OneVsOneClassifier": {"estimator": LogisticRegression()},
    "OneVsRestClassifier": {"estimator": LogisticRegression()},
    "OutputCodeClassifier": {"estimator": LogisticRegression()},
    "SelfTrainingClassifier": {"estimator": LogisticRegression()},
    "TunedThresholdClassifierCV": {"estimator": LogisticRegression(), "cv": 2},
    "StackingClassifier": {"estimators": _CLASSES, "cv": 2},
    "VotingClassifier": {"estimators": _CLASSES},
    "MultiOutputRegressor": {"estimator": Ridge()},
    "RegressorChain": {"estimator": Ridge()},
    "StackingRegressor": {"estimators": _PAIR, "cv": 2},
    "VotingRegressor": {"estimators": _PAIR},
    "GridSearchCV": {"estimator": Ridge(), "param_grid": {"alpha": [0.1, 1.0]}, "cv": 2},
    "RandomizedSearchCV": {
        "estimator": Ridge(),
        "param_distributions": {"alpha": [0.1, 1.0]},
        "n_iter": 2,
        "cv": 2,
    },
    "FrozenEstimator": {"estimator": Ridge().fit([[0.0], [1.0]], [0.0, 1.0])},
    "RFE": {"estimator": Ridge(), "n_features_to_select": 2},
    "RFECV": {"estimator": Ridge(), "cv": 2},
    "SelectFromModel": {"estimator": Ridge()},
    "SequentialFeatureSelector": {"estimator": Ridge(), "n_features_to_select": 2, "cv": 2},
    "FeatureUnion": {"transformer_list": [("a", StandardScaler()), ("b", MinMaxScaler())]},
    "SparseCoder": {"dictionary": np.eye(4)},
    "GaussianRandomProjection": {"n_components": 2},
    "SparseRandomProjection": {"n_components": 2},
    "RadiusNeighborsClassifier": {"radius": 1e3},
    "RadiusNeighborsRegressor": {"radius": 1e3},
    "LocalOutlierFactor": {"novelty": True},
    "QuadraticDiscriminantAnalysis": {"reg_param": 0.1},
    "CCA": {"n_components": 1},
    "PLSCanonical": {"n_components": 1},
    "PLSSVD": {"n_components": 1},
    "KMeans": {"n_clusters": 3},
    "MiniBatchKMeans": {"n_clusters": 3},
    "NuSVC": {"nu": 0.2},
    "NMF": {"n_components": 2},
    "MiniBatchNMF": {"n_components": 2},
    "MLPClassifier": {"hidden_layer_sizes": (8,)},
    "MLPRegressor": {"hidden_layer_sizes": (8,)},
    "LatentDirichletAllocation": {"n_components": 2},
    "DictionaryLearning": {"max_iter": 5},
    "MiniBatchDictionaryLearning": {"max_iter": 5},
    "PolynomialCountSketch": {"n_components": 8},
    "RBFSampler": {"n_components": 8},
    "Nystroem": {"n_components": 8},
    "SkewedChi2Sampler": {"n_components": 8},
    "QuantileTransformer": {"n_quantiles": 50},
    "SelectKBest": {"k": 2},
    "RandomTreesEmbedding": {"max_depth": 3},
}
_TWO_TARGETS = frozenset(
    {
        *("MultiOutputClassifier", "ClassifierChain", "MultiOutputRegressor", "RegressorChain"),
        *("MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV"),
        *("CCA", "PLSCanonical"),
    }
)
_TEXTS = frozenset({"CountVectorizer", "TfidfVectorizer", "HashingVectorizer"})
_CATEGORIES = frozenset({"OneHotEncoder", "OrdinalEncoder", "TargetEncoder"})
# They learn from classes.
_OF_CLASSES = frozenset(
    {"LinearDiscriminantAnalysis", "NeighborhoodComponentsAnalysis", "SelectFdr", "SelectFpr"}
    | {"SelectFwe", "SelectKBest", "SelectPercentile", "GenericUnivariateSelect"}
)
_OF_TWO_CLASSES = frozenset(
    {"ClassifierChain", "FixedThresholdClassifier", "SelfTrainingClassifier"}
    | {"TunedThresholdClassifierCV"}
)
_WHOLE = frozenset({"CategoricalNB"})


def estimator_cases() -> Iterator[Case]:
    """Yield the cases of scikit-learn's list, those left out excepted."""
    kinds = {
        kind: {name for name, _ in all_estimators(type_filter=kind)}
        for kind in ("classifier", "regressor", "transformer")
    }
    for name, cls in all_estimators():
        if name in LEFT_OUT:
            continue
        if name in kinds["classifier"] or name in kinds["regressor"]:
            group = CLASSIFIERS if name in kinds["classifier"] else REGRESSORS
            yield _case(group, name, "alone", partial(_alone, cls, group))
            if name != "IsotonicRegression":
                yield _case(group, name, "in a pipeline", partial(_in_pipeline, cls, group))
            continue
        if name in _TEXTS:
            yield _case(TRANSFORMERS, name, "and Ridge", partial(_texts, cls))
            continue
        if hasattr(cls, "predict") or name not in kinds["transformer"]:
            yield _case(OTHERS, name, "alone", partial(_other, cls))
        if name in kinds["transformer"] and hasattr(cls, "transform"):
            yield _case(TRANSFORMERS, name, "and a linear model", partial(_first, cls))


def _case(group: str, name: str, where: str, make: Callable[[], Source]) -> Case:
    return Case(group, f"{name} {where}", (name,), make)


def make_estimator(cls: type) -> Any:
    """Return a small one that gives the same each time."""
    known = inspect.signature(cls).parameters
    light = {name: value for name, value in _LIGHT.items() if name in known}
    return cls(**{**light, **_ARGUMENTS.get(cls.__name__, {})})


def _alone(cls: type, group: str) -> Source:
    model = make_estimator(cls)
    if cls.__name__ == "IsotonicRegression":
        table = numbers(names=("a",))
        return estimator_source(model, table, table.train["a"].to_numpy() * 2)
    table = numbers(gaps=_takes_gaps(model))
    if cls.__name__ in _WHOLE:
        table = _whole(table)
    return estimator_source(model, table, _target(cls, group, table, 0, 1))


def _in_pipeline(cls: type, group: str) -> Source:
    table = customers()
    model = Pipeline([("columns", _columns(cls)), ("model", make_estimator(cls))])
    labels: tuple[Any, ...] = ("gold", "none", "silver")
    if cls.__name__ in _OF_TWO_CLASSES:
        labels = (0, 1)
    return estimator_source(model, table, _target(cls, group, table, *labels))


def _target(cls: type, group: str, table: Table, *labels: Any) -> np.ndarray:
    found = spending(table.train) if group == REGRESSORS else classes(table.train, *labels)
    if cls.__name__ not in _TWO_TARGETS:
        return found
    second = found[::-1]
    return np.stack([found, second], axis=1)


def _columns(cls: type) -> ColumnTransformer:
    """Return an imputer, scaling and one-hot encoding; positive numbers where they are needed."""
    positive = cls.__name__ in {"MultinomialNB", "ComplementNB"}
    scaler: Any = MinMaxScaler(clip=True) if positive else StandardScaler()
    if cls.__name__ == "CategoricalNB":
        scaler = KBinsDiscretizer(3, encode="ordinal")
    text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), scaler), ["age", "visits"]),
            ("texts", text, ["plan"]),
        ]
    )


def _other(cls: type) -> Source:
    model, table = make_estimator(cls), numbers()
    if cls.__name__ in {"GridSearchCV", "RandomizedSearchCV", "FrozenEstimator"}:
        if cls.__name__ == "FrozenEstimator":
            model = cls(Ridge().fit(table.train, spending(table.train)))
        return estimator_source(model, table, spending(table.train))
    learns = inspect.signature(model.fit).parameters["y"].default is inspect.Parameter.empty
    return estimator_source(model, table, spending(table.train) if learns else None)


def _texts(cls: type) -> Source:
    table = customers()
    columns = ColumnTransformer([("text", make_estimator(cls), "note")])
    return estimator_source(make_pipeline(columns, Ridge()), table, spending(table.train))


def _first(cls: type) -> Source:
    step = make_estimator(cls)
    if cls.__name__ in _CATEGORIES:
        table = customers()
        columns = ColumnTransformer([("text", step, ["city", "plan"])], remainder="drop")
        # OrdinalEncoder hands gaps on.
        last: Any = Ridge()
        if cls.__name__ == "OrdinalEncoder":
            last = HistGradientBoostingRegressor(max_iter=8, random_state=0)
        return estimator_source(make_pipeline(columns, last), table, spending(table.train))
    table = numbers(gaps=_takes_gaps(step) and _fills_gaps(cls))
    if cls.__name__ in _OF_CLASSES:
        return estimator_source(
            make_pipeline(step, LogisticRegression()), table, classes(table.train, 0, 1, 2)
        )
    return estimator_source(make_pipeline(step, Ridge()), table, spending(table.train))


def _takes_gaps(model: Any) -> bool:
    return bool(model.__sklearn_tags__().input_tags.allow_nan)


def _fills_gaps(cls: type) -> bool:
    return cls.__name__ in {"SimpleImputer", "KNNImputer", "MissingIndicator"}


def _whole(table: Table) -> Table:
    """Return a table of small whole numbers."""
    train, judge = (frame.clip(upper=5).round() for frame in (table.train, table.judge))
    ordinary = tuple(
        {name: float(min(5, round(value))) for name, value in row.items()} for row in table.ordinary
    )
    return Table(train, judge, ordinary, table.odd)
