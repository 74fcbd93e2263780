"""Cases of pipelines as people write them, beyond one estimator with the usual preparation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import (
    ColumnTransformer,
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, LinearSVC

from tests.outside.case import Case, Source
from tests.outside.tables import Table, classes, customers, estimator_source, numbers, spending

GROUP = "scikit-learn pipelines"
_NUMBERS, _TEXTS = ["age", "visits"], ["city", "plan"]
_FREQUENT: dict[str, Any] = {"strategy": "most_frequent"}
_FOREST: dict[str, Any] = {"n_estimators": 8, "random_state": 0}


def pipeline_cases() -> Iterator[Case]:
    """Yield the cases."""
    for name, make, classify in _ON_TABLE:
        yield _case(name, partial(_on_table, make, classify))
    for name, vectorizer in _VECTORIZERS:
        yield _case(name, partial(_on_note, vectorizer))
    for name, make, classify in _ON_NUMBERS:
        yield _case(name, partial(_on_numbers, make, classify))
    yield _case("300 columns and Ridge", partial(_many_columns, 300))
    yield _case("columns 0, 1, 2 and Ridge", _numbered)
    yield _case("column score and IsolationForest", _named_score)
    yield _case("MultiOutputRegressor of Ridge on two targets", partial(_two, MultiOutputRegressor))
    yield _case("RegressorChain of Ridge on two targets", partial(_two, RegressorChain))
    yield _case("RandomForestRegressor on two targets", _two_of_a_forest)
    yield _case("boolean target and LogisticRegression", _boolean)


def _case(name: str, make: Callable[[], Source]) -> Case:
    kinds = tuple(word for word in name.replace("(", " ").split() if word[:1].isupper())
    return Case(GROUP, name, kinds or (name,), make)


def _encoded(encoder: Any, last: Any, *, imputed: bool = True, scaler: Any = None) -> Pipeline:
    text = make_pipeline(SimpleImputer(**_FREQUENT), encoder) if imputed else encoder
    number = make_pipeline(SimpleImputer(), scaler or StandardScaler())
    first = ColumnTransformer([("n", number, _NUMBERS), ("t", text, _TEXTS)])
    return Pipeline([("columns", first), ("last", last)])


def _lone(encoder: Any) -> Pipeline:
    first = ColumnTransformer([("t", encoder, _TEXTS), ("n", "passthrough", ["visits", "vip"])])
    last: Any = Ridge()
    if isinstance(encoder, OrdinalEncoder):  # it hands gaps on
        last = HistGradientBoostingRegressor(max_iter=8, random_state=0)
    return Pipeline([("columns", first), ("last", last)])


def _selected() -> Any:
    numeric = make_column_selector(dtype_include="number")
    first = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numeric),
        (OneHotEncoder(handle_unknown="ignore"), ["plan"]),
    )
    return make_pipeline(first, Ridge())


def _united() -> Any:
    union = FeatureUnion([("p", PCA(1)), ("s", StandardScaler())])
    number = make_pipeline(SimpleImputer(), union)
    return make_pipeline(ColumnTransformer([("n", number, _NUMBERS)]), Ridge())


def _text_and_numbers() -> Any:
    first = ColumnTransformer(
        [
            ("note", TfidfVectorizer(), "note"),
            ("n", make_pipeline(SimpleImputer(), StandardScaler()), _NUMBERS),
            ("t", OneHotEncoder(handle_unknown="ignore"), ["plan"]),
        ]
    )
    return make_pipeline(first, LogisticRegression())


_IGNORE: dict[str, Any] = {"handle_unknown": "ignore"}
_MINUS: dict[str, Any] = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
_ON_TABLE: tuple[tuple[str, Callable[[], Any], bool], ...] = (
    ("OneHotEncoder(drop=first)", lambda: _encoded(OneHotEncoder(drop="first"), Ridge()), False),
    (
        "OneHotEncoder(drop=if_binary)",
        lambda: _encoded(OneHotEncoder(drop="if_binary", **_IGNORE), Ridge()),
        False,
    ),
    (
        "OneHotEncoder(min_frequency)",
        lambda: _encoded(OneHotEncoder(min_frequency=60, **_IGNORE), Ridge()),
        False,
    ),
    (
        "OneHotEncoder(max_categories)",
        lambda: _encoded(OneHotEncoder(max_categories=2, **_IGNORE), Ridge()),
        False,
    ),
    (
        "OneHotEncoder(infrequent_if_exist)",
        lambda: _encoded(
            OneHotEncoder(min_frequency=60, handle_unknown="infrequent_if_exist"), Ridge()
        ),
        False,
    ),
    ("OneHotEncoder without an imputer", lambda: _lone(OneHotEncoder(**_IGNORE)), False),
    ("OneHotEncoder that raises, no imputer", lambda: _lone(OneHotEncoder()), False),
    ("OrdinalEncoder without an imputer", lambda: _lone(OrdinalEncoder()), False),
    (
        "OrdinalEncoder(unknown_value=-1), no imputer",
        lambda: _lone(OrdinalEncoder(**_MINUS)),
        False,
    ),
    (
        "OrdinalEncoder(encoded_missing_value=-2)",
        lambda: _lone(OrdinalEncoder(encoded_missing_value=-2, **_MINUS)),
        False,
    ),
    ("TargetEncoder without an imputer", lambda: _lone(TargetEncoder(random_state=0)), False),
    (
        "OrdinalEncoder and RandomForestClassifier",
        lambda: _encoded(OrdinalEncoder(**_MINUS), RandomForestClassifier(**_FOREST)),
        True,
    ),
    (
        "OrdinalEncoder and HistGradientBoostingClassifier",
        lambda: _encoded(
            OrdinalEncoder(**_MINUS), HistGradientBoostingClassifier(max_iter=8, random_state=0)
        ),
        True,
    ),
    (
        "TargetEncoder and GradientBoostingRegressor",
        lambda: _encoded(TargetEncoder(random_state=0), GradientBoostingRegressor(**_FOREST)),
        False,
    ),
    (
        "SimpleImputer(constant)",
        lambda: make_pipeline(
            ColumnTransformer(
                [
                    ("n", SimpleImputer(strategy="constant", fill_value=-1), _NUMBERS),
                    (
                        "t",
                        make_pipeline(
                            SimpleImputer(strategy="constant", fill_value="none"),
                            OneHotEncoder(**_IGNORE),
                        ),
                        _TEXTS,
                    ),
                ]
            ),
            Ridge(),
        ),
        False,
    ),
    (
        "SimpleImputer(add_indicator=True)",
        lambda: make_pipeline(
            ColumnTransformer([("n", SimpleImputer(add_indicator=True), _NUMBERS)]), Ridge()
        ),
        False,
    ),
    (
        "KNNImputer",
        lambda: make_pipeline(
            ColumnTransformer([("n", KNNImputer(n_neighbors=3), _NUMBERS)]), Ridge()
        ),
        False,
    ),
    ("make_column_selector and StandardScaler", _selected, False),
    ("FeatureUnion of PCA and StandardScaler", _united, False),
    ("TfidfVectorizer beside numbers", _text_and_numbers, True),
    (
        "PolynomialFeatures and LinearRegression",
        lambda: _encoded(
            OneHotEncoder(**_IGNORE),
            LinearRegression(),
            scaler=make_pipeline(StandardScaler(), PolynomialFeatures(2)),
        ),
        False,
    ),
    (
        "KBinsDiscretizer and LogisticRegression",
        lambda: _encoded(
            OneHotEncoder(**_IGNORE), LogisticRegression(), scaler=KBinsDiscretizer(4)
        ),
        True,
    ),
    (
        "SplineTransformer and Ridge",
        lambda: _encoded(OneHotEncoder(**_IGNORE), Ridge(), scaler=SplineTransformer()),
        False,
    ),
    (
        "SelectKBest and Ridge",
        lambda: _encoded(
            OneHotEncoder(sparse_output=False, **_IGNORE),
            make_pipeline(SelectKBest(f_regression, k=3), Ridge()),
        ),
        False,
    ),
    (
        "TruncatedSVD of OneHotEncoder",
        lambda: _encoded(
            OneHotEncoder(**_IGNORE), make_pipeline(TruncatedSVD(3, random_state=0), Ridge())
        ),
        False,
    ),
)
_VECTORIZERS: tuple[tuple[str, Any], ...] = (
    ("TfidfVectorizer", TfidfVectorizer()),
    ("TfidfVectorizer(ngram_range)", TfidfVectorizer(ngram_range=(1, 2))),
    ("TfidfVectorizer(sublinear_tf)", TfidfVectorizer(sublinear_tf=True)),
    ("TfidfVectorizer(lowercase=False)", TfidfVectorizer(lowercase=False)),
    ("TfidfVectorizer(char_wb)", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3))),
    ("TfidfVectorizer(char)", TfidfVectorizer(analyzer="char", ngram_range=(1, 2))),
    ("TfidfVectorizer(stop_words)", TfidfVectorizer(stop_words="english")),
    (
        "TfidfVectorizer(stop_words, ngram_range)",
        TfidfVectorizer(stop_words="english", ngram_range=(1, 2)),
    ),
    ("TfidfVectorizer(strip_accents)", TfidfVectorizer(strip_accents="unicode")),
    ("TfidfVectorizer(token_pattern)", TfidfVectorizer(token_pattern=r"[a-zA-Z]+")),
    ("TfidfVectorizer(max_features)", TfidfVectorizer(max_features=4)),
    ("CountVectorizer(binary)", CountVectorizer(binary=True)),
    ("CountVectorizer and TfidfTransformer", make_pipeline(CountVectorizer(), TfidfTransformer())),
    ("HashingVectorizer(n_features=64)", HashingVectorizer(n_features=64)),
)


def _voting(kind: str) -> Any:
    return VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting=kind)


_SVM: tuple[Any, Any] = (make_pipeline(StandardScaler(), LinearSVC()), LinearSVC())
_ON_NUMBERS: tuple[tuple[str, Callable[[], Any], bool], ...] = (
    ("VotingClassifier(hard)", lambda: _voting("hard"), True),
    ("VotingClassifier(soft)", lambda: _voting("soft"), True),
    (
        "StackingClassifier of pipelines",
        lambda: StackingClassifier(
            [("a", make_pipeline(StandardScaler(), LogisticRegression())), ("b", _SVM[0])], cv=2
        ),
        True,
    ),
    ("OneVsRestClassifier of LinearSVC", lambda: OneVsRestClassifier(LinearSVC()), True),
    ("OneVsOneClassifier of LinearSVC", lambda: OneVsOneClassifier(LinearSVC()), True),
    ("SVC with kernel poly", lambda: make_pipeline(StandardScaler(), SVC(kernel="poly")), True),
    (
        "CalibratedClassifierCV(isotonic) of RandomForestClassifier",
        lambda: CalibratedClassifierCV(RandomForestClassifier(**_FOREST), method="isotonic", cv=2),
        True,
    ),
    (
        "CalibratedClassifierCV(sigmoid) of LinearSVC",
        lambda: CalibratedClassifierCV(LinearSVC(), cv=2),
        True,
    ),
    (
        "FunctionTransformer(np.log1p)",
        lambda: make_pipeline(FunctionTransformer(np.log1p), Ridge()),
        False,
    ),
    (
        "FunctionTransformer(np.abs)",
        lambda: make_pipeline(FunctionTransformer(np.abs), Ridge()),
        False,
    ),
    (
        "TransformedTargetRegressor(np.log1p)",
        lambda: TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1),
        False,
    ),
    (
        "TransformedTargetRegressor(StandardScaler)",
        lambda: TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
        False,
    ),
    (
        "Pipeline in a Pipeline",
        lambda: make_pipeline(make_pipeline(StandardScaler(), PCA(2)), make_pipeline(Ridge())),
        False,
    ),
    ("Pipeline with passthrough", lambda: Pipeline([("a", "passthrough"), ("b", Ridge())]), False),
)


def _on_table(make: Callable[[], Any], classify: bool) -> Source:
    table = customers()
    target = classes(table.train, "gold", "none") if classify else spending(table.train)
    return estimator_source(make(), table, target)


def _on_note(vectorizer: Any) -> Source:
    table = customers()
    first = ColumnTransformer([("note", vectorizer, "note")])
    return estimator_source(
        make_pipeline(first, LogisticRegression()), _only(table, "note"), classes(table.train, 0, 1)
    )


def _on_numbers(make: Callable[[], Any], classify: bool) -> Source:
    table = numbers()
    target = classes(table.train, 0, 1, 2) if classify else spending(table.train)
    return estimator_source(make(), table, target)


def _many_columns(count: int) -> Source:
    table = numbers(names=[f"c{number}" for number in range(count)])
    return estimator_source(Ridge(), table, spending(table.train))


def _numbered() -> Source:
    table = numbers(names=(0, 1, 2))
    return estimator_source(Ridge(), table, spending(table.train))


def _named_score() -> Source:
    return estimator_source(IsolationForest(**_FOREST), numbers(names=("score", "other")), None)


def _two(of: Any) -> Source:
    table = numbers()
    target = spending(table.train)
    return estimator_source(of(Ridge()), table, np.stack([target, target[::-1]], axis=1))


def _two_of_a_forest() -> Source:
    table = numbers()
    target = spending(table.train)
    model = RandomForestRegressor(**_FOREST)
    return estimator_source(model, table, np.stack([target, target[::-1]], axis=1))


def _boolean() -> Source:
    table = numbers()
    return estimator_source(LogisticRegression(), table, classes(table.train, 0, 1) > 0)


def _only(table: Table, name: str) -> Table:
    def part(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[[name]]

    usual = table.ordinary[0]
    odd = tuple({name: row[name]} for row in table.odd if row[name] != usual[name])
    ordinary = tuple({name: row[name]} for row in table.ordinary)
    return Table(part(table.train), part(table.judge), ordinary, odd)
