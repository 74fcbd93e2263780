"""Cases of XGBoost, LightGBM and CatBoost with their options."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from tests.outside.case import Arrays, Case, Source
from tests.outside.tables import Table, classes, customers, fitted_source, numbers, spending

GROUP = "boosters"
_TREES: dict[str, Any] = {"n_estimators": 8, "max_depth": 3, "n_jobs": 1, "random_state": 0}
_LIGHT: dict[str, dict[str, Any]] = {
    "xgboost": _TREES,
    "lightgbm": {**_TREES, "verbose": -1},
    "catboost": {
        "iterations": 8,
        "depth": 3,
        "verbose": 0,
        "thread_count": 1,
        "allow_writing_files": False,
        "random_seed": 0,
    },
}
_CATEGORIES: dict[str, dict[str, Any]] = {"cat_features": {"cat_features": ["city", "plan"]}}


def booster_cases() -> Iterator[Case]:
    """Yield the cases."""
    yield from _xgboost()
    yield from _lightgbm()
    yield from _catboost()


def _xgboost() -> Iterator[Case]:
    regressions: dict[str, dict[str, Any]] = {
        "": {},
        "booster=gblinear": {"booster": "gblinear", "max_depth": None},
        "booster=dart": {"booster": "dart", "rate_drop": 0.2},
        "base_score=3": {"base_score": 3.0},
        "count:poisson": {"objective": "count:poisson"},
        "reg:gamma": {"objective": "reg:gamma"},
        "reg:tweedie": {"objective": "reg:tweedie"},
        "reg:squaredlogerror": {"objective": "reg:squaredlogerror"},
        "reg:absoluteerror": {"objective": "reg:absoluteerror"},
        "reg:quantileerror": {"objective": "reg:quantileerror", "quantile_alpha": 0.9},
        "reg:logistic": {"objective": "reg:logistic"},
        "binary:logistic": {"objective": "binary:logistic"},
        "missing=0": {"missing": 0.0},
        "num_parallel_tree=4": {"num_parallel_tree": 4, "subsample": 0.7},
        "multi_strategy=multi_output_tree": {"multi_strategy": "multi_output_tree"},
        "two targets": {},
        "grow_policy=lossguide": {"grow_policy": "lossguide", "max_leaves": 6},
        "enable_categorical": {"enable_categorical": True},
    }
    for option, arguments in regressions.items():
        yield _case("XGBRegressor", option, "xgboost", arguments)
    for option, arguments, labels in (
        ("two classes", {}, (0, 1)),
        ("three classes", {}, (0, 1, 2)),
        ("multi:softmax", {"objective": "multi:softmax"}, (0, 1, 2)),
        ("binary:hinge", {"objective": "binary:hinge"}, (0, 1)),
        ("booster=dart", {"booster": "dart", "rate_drop": 0.2}, (0, 1)),
        ("booster=gblinear", {"booster": "gblinear", "max_depth": None}, (0, 1)),
        ("scale_pos_weight=3", {"scale_pos_weight": 3.0}, (0, 1)),
        ("early stopping", {"early_stopping_rounds": 1, "n_estimators": 40}, (0, 1)),
    ):
        yield _case("XGBClassifier", option, "xgboost", arguments, *labels)
    yield _case("XGBRFClassifier", "", "xgboost", {}, 0, 1)
    yield _case("XGBRFRegressor", "", "xgboost", {})
    yield _case("XGBRanker", "", "xgboost", {})


def _lightgbm() -> Iterator[Case]:
    regressions: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {}),
        ("zero_as_missing", {"zero_as_missing": True}),
        ("use_missing=False", {"use_missing": False}),
        ("boosting_type=dart", {"boosting_type": "dart"}),
        ("boosting_type=rf", {"boosting_type": "rf", "subsample": 0.7, "subsample_freq": 1}),
        ("linear_tree", {"linear_tree": True}),
        ("poisson", {"objective": "poisson"}),
        ("tweedie", {"objective": "tweedie"}),
        ("gamma", {"objective": "gamma"}),
        ("quantile", {"objective": "quantile", "alpha": 0.9}),
        ("huber", {"objective": "huber"}),
        ("mape", {"objective": "mape"}),
        ("cross_entropy", {"objective": "cross_entropy"}),
        ("categorical_feature", {"categorical_feature": [0]}),
        ("monotone_constraints", {"monotone_constraints": [1, 0, 0, 0]}),
    )
    for option, arguments in regressions:
        yield _case("LGBMRegressor", option, "lightgbm", arguments)
    for option, arguments, labels in (
        ("two classes", {}, (0, 1)),
        ("three classes", {}, (0, 1, 2)),
        ("texts as classes", {}, ("gold", "none", "silver")),
        ("multiclassova", {"objective": "multiclassova"}, (0, 1, 2)),
        (
            "boosting_type=rf",
            {"boosting_type": "rf", "subsample": 0.7, "subsample_freq": 1},
            (0, 1),
        ),
        (
            "boosting_type=rf, three",
            {"boosting_type": "rf", "subsample": 0.7, "subsample_freq": 1},
            (0, 1, 2),
        ),
        ("boosting_type=dart", {"boosting_type": "dart"}, (0, 1)),
        ("zero_as_missing", {"zero_as_missing": True}, (0, 1)),
        ("is_unbalance", {"is_unbalance": True}, (0, 1)),
        ("sigmoid=2", {"sigmoid": 2.0}, (0, 1)),
    ):
        yield _case("LGBMClassifier", option, "lightgbm", dict[str, Any](arguments), *labels)
    yield _case("LGBMRanker", "", "lightgbm", {})


def _catboost() -> Iterator[Case]:
    for option, arguments in (
        ("", {}),
        ("MAE", {"loss_function": "MAE"}),
        ("Quantile", {"loss_function": "Quantile:alpha=0.9"}),
        ("Poisson", {"loss_function": "Poisson"}),
        ("Tweedie", {"loss_function": "Tweedie:variance_power=1.5"}),
        ("LogLinQuantile", {"loss_function": "LogLinQuantile"}),
        ("nan_mode=Max", {"nan_mode": "Max"}),
        ("Lossguide", {"grow_policy": "Lossguide"}),
        ("Depthwise", {"grow_policy": "Depthwise"}),
        ("two targets", {"loss_function": "MultiRMSE"}),
        ("cat_features", {}),
        ("boost_from_average", {"boost_from_average": True}),
    ):
        yield _case("CatBoostRegressor", option, "catboost", dict[str, Any](arguments))
    for option, arguments, labels in (
        ("two classes", {}, (0, 1)),
        ("three classes", {}, (0, 1, 2)),
        ("texts as classes", {}, ("gold", "none", "silver")),
        ("MultiClassOneVsAll", {"loss_function": "MultiClassOneVsAll"}, (0, 1, 2)),
        ("CrossEntropy", {"loss_function": "CrossEntropy"}, (0, 1)),
        ("cat_features", {}, (0, 1)),
    ):
        yield _case("CatBoostClassifier", option, "catboost", dict[str, Any](arguments), *labels)
    yield _case("CatBoostRanker", "", "catboost", {"loss_function": "QueryRMSE"})


def _case(kind: str, option: str, flavor: str, arguments: dict[str, Any], *labels: Any) -> Case:
    name = f"{kind} {option}".strip()
    kinds = (kind, option.partition("=")[0] or kind, flavor)
    return Case(GROUP, name, kinds, partial(_source, kind, option, flavor, arguments, labels))


def _source(
    kind: str, option: str, flavor: str, arguments: dict[str, Any], labels: tuple[Any, ...]
) -> Source:
    model = getattr(importlib.import_module(flavor), kind)(
        **{**_LIGHT[flavor], **arguments, **_CATEGORIES.get(option, {})}
    )
    table = _table(kind, option)
    rows = table.train
    if option == "enable_categorical":
        rows = rows.astype({"city": "category", "plan": "category"})
    target, fit = _target(option, rows, labels), dict[str, Any]()
    if option == "early stopping":
        fit = {"eval_set": [(rows[:40], target[:40])], "verbose": False}
    if kind.endswith("Ranker"):
        target, fit = classes(rows, 0, 1, 2), _groups(flavor, len(rows))
    model.fit(rows, target, **fit)
    stored = model
    if option == "missing=0":  # XGBoost's file, which MLflow stores, does not hold `missing`
        stored = type(model)()
        stored.load_model(model.get_booster().save_raw())
    return fitted_source(model, table, flavor, partial(_answers, stored, flavor, bool(labels)))


def _table(kind: str, option: str) -> Table:
    if option in {"cat_features", "enable_categorical"}:
        return _mixed()
    table = numbers(gaps=kind != "CatBoostRanker")
    zeros = "missing=0" in option or "zero" in option or option == "categorical_feature"
    return _with_zeros(table) if zeros else table


def _target(option: str, rows: pd.DataFrame, labels: tuple[Any, ...]) -> np.ndarray:
    target = classes(rows, *labels) if labels else spending(rows)
    if "zero" in option or option == "missing=0":  # zeros are not like small numbers
        target = np.where(rows["a"] == 0, labels[-1] if labels else target.max(), target)
    if option in {"reg:logistic", "binary:logistic", "cross_entropy"}:
        return np.asarray(target > np.median(target), float)
    if option in {"two targets", "multi_strategy=multi_output_tree"}:
        return np.stack([target, target[::-1]], axis=1)
    return target


def _groups(flavor: str, rows: int) -> dict[str, Any]:
    """Return the arguments that say which rows are ranked together: eight at a time."""
    if flavor == "lightgbm":
        return {"group": [8] * (rows // 8)}
    return {"qid" if flavor == "xgboost" else "group_id": np.repeat(np.arange(rows // 8), 8)}


def _answers(model: Any, flavor: str, classifies: bool, frame: pd.DataFrame) -> Arrays:
    """Return the answers as docs/models.md names them; XGBoost's numbers are float32."""
    real = np.float32 if flavor == "xgboost" else np.float64
    answers = np.asarray(model.predict(frame))
    if not classifies:
        return {"prediction": answers.astype(real)}
    label = answers.reshape(len(frame))
    if label.dtype.kind in "OUT":
        label = np.array([str(each).encode() for each in label], object)
    else:
        label = label.astype(np.int64)
    return {"label": label, "probabilities": np.asarray(model.predict_proba(frame), real)}


def _mixed() -> Table:
    """Return customers without free text and flags."""
    table = customers()
    names = ["age", "visits", "city", "plan"]
    return Table(
        table.train[names].assign(city=table.train["city"].fillna("none")),
        table.judge[names],
        tuple({name: row[name] for name in names} for row in table.ordinary),
        tuple({name: row[name] for name in names} for row in table.odd),
    )


def _with_zeros(table: Table) -> Table:
    """Return a table with zeros and whole numbers in the column a to train on."""
    train = table.train.assign(a=table.train["a"].fillna(0).round())
    judge = table.judge.assign(a=table.judge["a"].round().clip(lower=1))
    ordinary = tuple({**row, "a": float(round(row["a"]) or 1)} for row in table.ordinary)
    return Table(train, judge, ordinary, table.odd)
