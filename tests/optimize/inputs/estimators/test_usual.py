"""Estimators and pipelines as people bring them: the graph answers like the source on every row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import (
    ExtraTreesRegressor,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import RFE, SelectKBest, f_classif
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier, XGBModel, XGBRanker, XGBRegressor

from mlctl.bundle.tensors import Datatype
from mlctl.core.errors import MlctlError
from mlctl.optimize.inputs.estimators import EstimatorReference, load_estimator
from mlctl.optimize.recipes.graphs import invalid
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.services.model.session import open_session
from tests.support.estimators import as_inputs, file_source, skops_source

pytestmark = pytest.mark.slow

ROWS = 300
_KINDS = {"f": Datatype.FP64, "O": Datatype.BYTES, "i": Datatype.INT64}
_RNG = np.random.default_rng(0)
_WORDS = ["the", "good", "bad", "Slow", "don't", "naïve", "café", "x", "日本語", "zwölf", "battery"]


def table() -> pd.DataFrame:
    """Two columns of text and two of numbers."""
    return pd.DataFrame(
        {
            "city": _RNG.choice(["Bern", "Oslo", "Rome"], ROWS).astype(object),
            "plan": _RNG.choice(["free", "paid"], ROWS).astype(object),
            "age": _RNG.normal(40, 9, ROWS),
            "fee": np.abs(_RNG.normal(9, 2, ROWS)),
        }
    )


X = table()
NUMBERS = X[["age", "fee"]]
HOLES = NUMBERS.mask(_RNG.random(NUMBERS.shape) < 0.1)
ZEROS = NUMBERS.mask(_RNG.random(NUMBERS.shape) < 0.1, 0.0)
TEXTS = pd.DataFrame(
    {"note": [" ".join(_RNG.choice(_WORDS, _RNG.integers(0, 7))) for _ in range(ROWS)]}
).astype(object)
TWO, THREE = (X["age"] > 40).astype(int), np.digitize(X["age"], [35, 45])
NUMBER = X["age"] * 2 + X["fee"]
PAIR = np.stack([NUMBER, -NUMBER], axis=1)
GOOD = TEXTS["note"].str.contains("good").astype(int)
_FOREST: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
_BOOST: dict[str, Any] = {"n_estimators": 5, "verbose": -1, "n_jobs": 1}
_CAT: dict[str, Any] = {"iterations": 5, "verbose": 0, "allow_writing_files": False}
_BAGGED: dict[str, Any] = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7}


def encoded(text: Any, last: Any) -> Pipeline:
    """Encode the text columns with `text`, and pass the numbers on."""
    columns = [("t", text, ["city", "plan"]), ("n", "passthrough", ["age", "fee"])]
    return Pipeline([("c", ColumnTransformer(columns)), ("m", last)])


_ORDINAL = make_pipeline(
    SimpleImputer(strategy="most_frequent"),
    OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
)
_SELECTED = [
    ("n", StandardScaler(), make_column_selector(dtype_include=np.number)),
    ("t", OneHotEncoder(), make_column_selector(dtype_exclude=np.number)),
]
_PIPES = [
    ("a", make_pipeline(StandardScaler(), LogisticRegression())),
    ("b", make_pipeline(StandardScaler(), LinearSVC())),
]
_PLAIN = [("a", LogisticRegression()), ("b", GaussianNB())]


def text_model(vectorizer: Any) -> Pipeline:
    found: Pipeline = make_pipeline(vectorizer, LogisticRegression())
    return found


USUAL: dict[str, tuple[Any, Any, Any]] = {
    "ordinal encoder and forest": (encoded(_ORDINAL, RandomForestClassifier(**_FOREST)), X, TWO),
    "columns by type": (make_pipeline(ColumnTransformer(_SELECTED), Ridge()), X, NUMBER),
    "a column named score": (
        IsolationForest(**_FOREST),
        NUMBERS.set_axis(["score", "fee"], axis=1),
        None,
    ),
    "numbered columns": (Ridge(), NUMBERS.set_axis([0, 1], axis=1), NUMBER),
    "many columns": (Ridge(), pd.DataFrame(_RNG.normal(size=(ROWS, 300))), NUMBER),
    "hard votes": (VotingClassifier(_PLAIN, weights=[1, 2]), NUMBERS, THREE),
    "soft votes": (VotingClassifier(_PLAIN, voting="soft", weights=[1, 2]), NUMBERS, THREE),
    "stack of pipelines": (StackingClassifier(_PIPES, cv=2), NUMBERS, TWO),
    "stack with rows": (
        StackingClassifier(_PLAIN, final_estimator=_PIPES[0][1], cv=2, passthrough=True),
        NUMBERS,
        THREE,
    ),
    "one against one": (OneVsOneClassifier(LinearSVC()), NUMBERS, THREE),
    "one against the rest": (OneVsRestClassifier(LinearSVC()), NUMBERS, THREE),
    "calibrated pipeline": (
        CalibratedClassifierCV(_PIPES[0][1], cv=2, ensemble=False),
        NUMBERS,
        TWO,
    ),
    "search": (GridSearchCV(Ridge(), {"alpha": [1, 2]}, cv=2), NUMBERS, NUMBER),
    "two targets": (MultiOutputRegressor(Ridge()), NUMBERS, PAIR),
    "chain of targets": (RegressorChain(Ridge(), order=[1, 0]), NUMBERS, PAIR),
    "transformed target": (
        TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1),
        NUMBERS,
        NUMBER.abs(),
    ),
    "scaled target": (
        TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
        NUMBERS,
        NUMBER,
    ),
    "function": (make_pipeline(FunctionTransformer(np.log1p), Ridge()), NUMBERS.abs(), NUMBER),
    "best column": (
        make_pipeline(SelectKBest(f_classif, k=1), LogisticRegression()),
        NUMBERS,
        TWO,
    ),
    "eliminated column": (
        make_pipeline(RFE(LogisticRegression(), n_features_to_select=1), LogisticRegression()),
        NUMBERS,
        TWO,
    ),
    "words of a series": (text_model(TfidfVectorizer()), TEXTS["note"], GOOD),
    "words of a column": (
        make_pipeline(ColumnTransformer([("t", TfidfVectorizer(), "note")]), LogisticRegression()),
        TEXTS,
        GOOD,
    ),
    "phrases without stop words": (
        text_model(CountVectorizer(stop_words=["the", "bad"], ngram_range=(1, 2))),
        TEXTS["note"],
        GOOD,
    ),
    "characters": (
        text_model(TfidfVectorizer(analyzer="char", ngram_range=(1, 3))),
        TEXTS["note"],
        GOOD,
    ),
    "characters in words": (
        text_model(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)),
        TEXTS["note"],
        GOOD,
    ),
    "missing values in a forest": (RandomForestClassifier(**_FOREST), HOLES, TWO),
    "missing values in a tree": (DecisionTreeClassifier(max_depth=4), HOLES, THREE),
    "missing values in random trees": (ExtraTreesRegressor(**_FOREST), HOLES, NUMBER),
    "missing values among outliers": (IsolationForest(**_FOREST), HOLES, None),
    "lightgbm, missing values": (LGBMClassifier(**_BOOST), HOLES, TWO),
    "lightgbm, zeros are missing": (LGBMRegressor(zero_as_missing=True, **_BOOST), ZEROS, NUMBER),
    "lightgbm, forest": (LGBMClassifier(**_BOOST, **_BAGGED), NUMBERS, THREE),
    "lightgbm, forest of two classes": (LGBMClassifier(**_BOOST, **_BAGGED), NUMBERS, TWO),
    "lightgbm, forest of numbers": (LGBMRegressor(**_BOOST, **_BAGGED), NUMBERS, NUMBER),
    "lightgbm, one against the rest": (
        LGBMClassifier(objective="multiclassova", **_BOOST),
        NUMBERS,
        THREE,
    ),
    "lightgbm, true and false": (LGBMClassifier(**_BOOST), NUMBERS, TWO.astype(bool)),
    "lightgbm, text": (LGBMClassifier(**_BOOST), NUMBERS, np.where(TWO, "stay", "leave")),
    "xgboost, two targets": (XGBRegressor(n_estimators=5), NUMBERS, PAIR),
    "xgboost, logistic regressor": (
        XGBRegressor(n_estimators=5, objective="binary:logistic"),
        NUMBERS,
        TWO,
    ),
}


USUAL |= {
    "searched at random": (
        RandomizedSearchCV(Ridge(), {"alpha": [1, 2]}, n_iter=1, cv=2),
        NUMBERS,
        NUMBER,
    ),
    "bins": (make_pipeline(KBinsDiscretizer(4), Ridge()), NUMBERS, NUMBER),
    "rare categories": (
        encoded(OneHotEncoder(min_frequency=110, handle_unknown="infrequent_if_exist"), Ridge()),
        X,
        NUMBER,
    ),
    "few categories, one dropped": (
        encoded(OneHotEncoder(max_categories=2, drop="first", sparse_output=False), Ridge()),
        X,
        NUMBER,
    ),
    "counts, then weights": (
        text_model(make_pipeline(CountVectorizer(), TfidfTransformer(sublinear_tf=True))),
        TEXTS["note"],
        GOOD,
    ),
    "lightgbm, steep logistic function": (LGBMClassifier(sigmoid=2.0, **_BOOST), NUMBERS, TWO),
    "lightgbm, mape": (LGBMRegressor(objective="mape", **_BOOST), NUMBERS, NUMBER),
    "lightgbm, fair": (LGBMRegressor(objective="fair", **_BOOST), NUMBERS, NUMBER),
    "lightgbm, ova": (LGBMClassifier(objective="ova", **_BOOST), NUMBERS, THREE),
    "xgboost, dart": (XGBRegressor(n_estimators=5, booster="dart"), NUMBERS, NUMBER),
    "catboost, poisson": (
        CatBoostRegressor(loss_function="Poisson", **_CAT),
        NUMBERS,
        NUMBER.abs(),
    ),
    "catboost, one against the rest": (
        CatBoostClassifier(loss_function="MultiClassOneVsAll", **_CAT),
        NUMBERS,
        THREE,
    ),
}


def stored(model: Any, rows: Any, root: Path) -> SourceModel:
    """Return the fitted model as a registered one, with the signature of its rows."""
    frame = rows.to_frame() if isinstance(rows, pd.Series) else rows
    columns = {str(name): _KINDS[frame[name].dtype.kind] for name in frame}
    if isinstance(model, XGBModel):
        model.save_model(root / "model.ubj")
        source = file_source(root / "model.ubj", ModelFormat.XGBOOST, columns)
    elif type(model).__module__.startswith("catboost"):
        model.save_model(root / "model.cb")
        source = file_source(root / "model.cb", ModelFormat.CATBOOST, columns)
    else:
        is_lightgbm = isinstance(model, LGBMClassifier | LGBMRegressor)
        source = skops_source(model, root, columns, lightgbm=is_lightgbm)
    return dataclasses.replace(source, optional=frozenset())


@pytest.mark.parametrize("name", USUAL)
def test_usual__every_row__answers_like_the_fitted_model(name: str, tmp_path: Path) -> None:
    model, rows, target = USUAL[name]
    model.fit(rows, target)
    inputs = as_inputs(rows.to_frame() if isinstance(rows, pd.Series) else rows)
    estimator = load_estimator(stored(model, rows, tmp_path))
    reference = EstimatorReference(estimator)
    reference.export(tmp_path, {key: array[:3] for key, array in inputs.items()})
    assert invalid(tmp_path / "model.onnx") is None
    session, want = open_session(tmp_path / "model.onnx"), reference.run(inputs)
    assert not {spec.name for spec in estimator.source.signature.outputs} & set(inputs)
    for part in (slice(None), slice(0, 1)):
        found = session.run({key: array[part] for key, array in inputs.items()})
        for output, array in want.items():
            if array.dtype.kind == "f":
                limit = 1e-6 * float(np.abs(array).max())
                np.testing.assert_allclose(found[output], array[part], rtol=0, atol=limit)
            else:
                assert np.array_equal(found[output], array[part])
    # The reference is the model as it was fitted, not as mlctl reads its file.
    answers = np.asarray(model.predict(rows))
    main = want.get("prediction", want.get("label"))
    assert main is not None
    if main.dtype == object:
        answers = np.array([each.encode() for each in answers], object)
    assert np.array_equal(main, answers.reshape(main.shape))


@pytest.mark.parametrize(
    ("vectorizer", "reason"),
    [
        (TfidfVectorizer(strip_accents="unicode"), r"TfidfVectorizer\(strip_accents"),
        (CountVectorizer(token_pattern=r"(?<=a)\w+"), r"CountVectorizer\(token_pattern"),
        (CountVectorizer(analyzer="char_wb"), "ngram_range begin at 2"),
    ],
)
def test_text__no_onnx_form__is_rejected_with_the_setting(
    vectorizer: Any, reason: str, tmp_path: Path
) -> None:
    texts = TEXTS["note"] + " ab aab"
    model = text_model(vectorizer).fit(texts, GOOD)
    estimator = load_estimator(stored(model, texts, tmp_path))
    with pytest.raises(MlctlError, match=reason):
        EstimatorReference(estimator).export(tmp_path, as_inputs(texts.to_frame().head(3)))


def test_lightgbm__numbers_that_count_as_zero__are_above_a_split_below_zero(
    tmp_path: Path,
) -> None:
    rows = pd.DataFrame({"change": np.arange(ROWS) % 3 - 1.0})
    model = LGBMRegressor(n_estimators=3, verbose=-1).fit(rows, rows["change"] ** 2)
    edge = -float(np.float32(1e-35))
    assert repr(edge) in model.booster_.model_to_string()
    reference = EstimatorReference(load_estimator(stored(model, rows, tmp_path)))
    odd = np.array([edge, np.nextafter(edge, -1), np.nextafter(edge, 1), -edge, 0.0, -1.0, 1.0])
    reference.export(tmp_path, {"change": odd})
    found = open_session(tmp_path / "model.onnx").run({"change": odd})["prediction"]
    want = model.predict(pd.DataFrame({"change": odd}))
    assert len({*want}) > 1
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


def test_xgboost_ranker__scores__are_its_predictions(tmp_path: Path) -> None:
    model = XGBRanker(n_estimators=5).fit(NUMBERS, THREE, qid=np.arange(ROWS) // 10)
    estimator = load_estimator(stored(model, NUMBERS, tmp_path))
    reference, inputs = EstimatorReference(estimator), as_inputs(NUMBERS)
    reference.export(tmp_path, inputs)
    want = model.predict(NUMBERS)
    assert np.array_equal(reference.run(inputs)["prediction"], want)
    found = open_session(tmp_path / "model.onnx").run(inputs)["prediction"]
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "target", "reason"),
    [
        (XGBRegressor(booster="gblinear"), NUMBER, r'XGBRegressor\(booster="gblinear"\)'),
        (XGBClassifier(objective="multi:softmax"), THREE, 'objective="multi:softmax"'),
        (XGBRegressor(multi_strategy="multi_output_tree"), PAIR, "several targets"),
        (LGBMRegressor(linear_tree=True, **_BOOST), NUMBER, "linear_tree has no ONNX form"),
        (CatBoostRegressor(grow_policy="Depthwise", **_CAT), NUMBER, "grow_policy='Depthwise'"),
        (make_pipeline(Nystroem(), Ridge()), NUMBER, "^Nystroem in this Pipeline cannot"),
        (make_pipeline(HashingVectorizer(), LogisticRegression()), None, "^HashingVectorizer in"),
        (
            make_pipeline(StandardScaler(), CalibratedClassifierCV(KNeighborsClassifier(), cv=2)),
            TWO,
            r"\(in Pipeline, CalibratedClassifierCV, KNeighborsClassifier\)",
        ),
    ],
)
def test_rejected__what_has_no_onnx_form__is_named_with_a_way_out(
    model: Any, target: Any, reason: str, tmp_path: Path
) -> None:
    rows, target = (TEXTS["note"], GOOD) if target is None else (NUMBERS, target)
    model.fit(rows, target)
    inputs = as_inputs((rows.to_frame() if target is GOOD else rows).head(3))
    with pytest.raises(MlctlError, match=reason) as caught:
        EstimatorReference(load_estimator(stored(model, rows, tmp_path))).export(tmp_path, inputs)
    assert caught.value.hint
    assert str(tmp_path) not in caught.value.message
