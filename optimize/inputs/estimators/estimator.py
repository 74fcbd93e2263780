"""A registered estimator behind its signature: rows of a table in, named arrays out.

The outputs follow from the kind of estimator:
- classifier: `probabilities` [rows, classes] if it has them, and `label` [rows];
- regressor: `prediction` [rows], or [rows, targets];
- outlier detector: `score` [rows] (its decision function) and `label` [rows], 1 or -1;
- clusterer: `label` [rows].

No graph has an input and an output of one name: the output of a model with such a column is called
`model_score`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.core.quiet import quiet
from mlctl.core.text import printable
from mlctl.optimize.data import Tensors
from mlctl.optimize.inputs.estimators.skops_file import load_skops
from mlctl.optimize.inputs.loading import loading
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.registry.mlmodel import check_signature
from mlctl.registry.tracking import pickle_loading

# CatBoost's loss functions of models that choose one class; MultiLogloss chooses several.
_CATBOOST_MAGIC = b"CBM1"
_CATBOOST_CLASSIFIERS = ("Logloss", "CrossEntropy", "MultiClass")

PROBABILITIES, LABEL, PREDICTION, SCORE = "probabilities", "label", "prediction", "score"

# The packages that each format needs, by their names for `import`; also the name of the extra.
_PACKAGES: Mapping[ModelFormat, tuple[str, ...]] = {
    ModelFormat.SKLEARN: ("sklearn", "skops", "skl2onnx"),
    ModelFormat.XGBOOST: ("xgboost", "sklearn", "skl2onnx", "onnxmltools"),
    ModelFormat.LIGHTGBM: ("lightgbm", "sklearn", "skops", "skl2onnx", "onnxmltools"),
    ModelFormat.CATBOOST: ("catboost", "sklearn", "skops", "skl2onnx"),
}


class Kind(StrEnum):
    """What an estimator answers; see the module."""

    CLASSIFIER = "classifier"
    REGRESSOR = "regressor"
    OUTLIERS = "outlier detector"
    CLUSTERER = "clusterer"


@dataclass(frozen=True, slots=True)
class Estimator:
    """A loaded estimator; `source.signature` has the outputs that `run` returns.

    `classes` are a classifier's, in the order of its probabilities.
    """

    source: SourceModel
    model: Any
    kind: Kind
    classes: np.ndarray | None

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """Return the outputs by name; the estimator's own errors pass through."""
        rows = self.table(inputs)
        with quiet():
            answers = self._answers(rows)
        found = {self.output_name(name): answer for name, answer in answers.items()}
        return {
            spec.name: _as_output(found[spec.name], spec) for spec in self.source.signature.outputs
        }

    def output_name(self, name: str) -> str:
        """Return what the output `name` is called in the signature; see the module."""
        return _free_name(name, self.source)

    def table(self, inputs: Tensors) -> Any:
        """Return the rows as the estimator takes them: a DataFrame, or an array [rows, features].

        Empty text in an optional column becomes NaN, as pandas stores a missing value.
        """
        specs = self.source.signature.inputs
        if not self.source.columns:
            return _texts(inputs[specs[0].name]) if is_text(specs[0]) else inputs[specs[0].name]
        import pandas as pd

        columns = {}
        for spec in specs:
            array = inputs[spec.name]
            if is_text(spec):
                array = _texts(array)
                if spec.name in self.source.optional:
                    array[array == ""] = np.nan
            columns[spec.name] = array  # as a Series each would be aligned with all others
        if _takes_texts(self.model):
            return pd.Series(columns[specs[0].name])
        return pd.DataFrame(columns)

    def _answers(self, rows: Any) -> dict[str, Any]:
        if self.kind is Kind.REGRESSOR:
            return {PREDICTION: self.model.predict(rows)}
        found = {LABEL: self.model.predict(rows)}
        if self.kind is Kind.CLASSIFIER and has_probabilities(self.model):
            found[PROBABILITIES] = self.model.predict_proba(rows)
        if self.kind is Kind.OUTLIERS:
            found[SCORE] = self.model.decision_function(rows)
        return found


def load_estimator(source: SourceModel) -> Estimator:
    """Load the registered estimator, without running code unless pickles are allowed.

    RUNTIME_MISSING names the packages to install; UNSUPPORTED_MODEL what is not supported.
    """
    _require_packages(source.format)
    model = _load(source)
    kind = _kind(model, source)
    classes = np.asarray(model.classes_) if kind is Kind.CLASSIFIER else None
    signature = Signature(
        inputs=source.signature.inputs, outputs=_outputs(source, model, kind, classes)
    )
    try:
        check_signature(signature)
    except ValueError as error:
        raise _unsupported(source, str(error), "Rename that column before training.") from error
    _check_inputs(source)
    return Estimator(dataclasses.replace(source, signature=signature), model, kind, classes)


def with_outputs(source: SourceModel) -> SourceModel:
    """Return an estimator's `source` with the signature's real outputs; other models unchanged."""
    return load_estimator(source).source if source.format.is_estimator else source


def _free_name(name: str, source: SourceModel) -> str:
    """Return `name`, with `model_` before it while a column has that name."""
    columns = {spec.name for spec in source.signature.inputs}
    while name in columns:
        name = f"model_{name}"
    return name


def has_probabilities(model: Any) -> bool:
    """Return whether a fitted classifier gives probabilities; SVC does only if asked to."""
    return hasattr(model, "predict_proba")


def _require_packages(found: ModelFormat) -> None:
    import importlib.util

    missing = [name for name in _PACKAGES[found] if importlib.util.find_spec(name) is None]
    if missing:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"{found.value} models need packages that are not installed: {', '.join(missing)}",
            install_hint(f"cpu,optimize,{found.value}"),
        )


def _load(source: SourceModel) -> Any:
    if source.pickle_allowed:
        return _load_pickle(source)
    match source.format:
        case ModelFormat.SKLEARN:
            return load_skops(source.model_path, source.uri)
        case ModelFormat.XGBOOST:
            return load_xgboost(source.model_path, source.uri)
        case ModelFormat.CATBOOST:
            return load_catboost(source)
        case _:
            if source.model_path.suffix == ".skops":
                return load_skops(source.model_path, source.uri, lightgbm=True)
            return _load_booster(source)


def _load_pickle(source: SourceModel) -> Any:
    import importlib

    flavor = importlib.import_module(f"mlflow.{source.format.value}")
    with loading(source.uri), pickle_loading(allowed=True):  # the pickle's own code runs in there
        model = flavor.load_model(str(source.artifacts))
    if not hasattr(model, "predict") or not hasattr(model, "get_params"):
        raise _unsupported(source, f"it is a {type(model).__name__}, not a scikit-learn estimator")
    return model


def load_xgboost(path: Path, label: str) -> Any:
    """Return the model in XGBoost's own file as its scikit-learn class, by its objective.

    A ranker's scores are a regressor's predictions. UNSUPPORTED_MODEL names what has no ONNX form.
    """
    import xgboost

    with loading(label):
        booster = xgboost.Booster(model_file=str(path))
        learner = json.loads(booster.save_config())["learner"]
        classify = _classifies(booster, str(learner["objective"]["name"]))
        model = xgboost.XGBClassifier() if classify else xgboost.XGBRegressor()
    name = type(model).__name__
    if learner["learner_train_param"]["booster"] == "gblinear":
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f'{label}: {name}(booster="gblinear") has no ONNX form',
            "Train a linear model of scikit-learn, or trees.",
        )
    if learner["learner_train_param"].get("multi_strategy") == "multi_output_tree":
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f'{label}: {name}(multi_strategy="multi_output_tree") has no ONNX form',
            'Train it with multi_strategy="one_output_per_tree".',
        )
    if learner["objective"]["name"] == "multi:softmax":
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f'{label}: {name}(objective="multi:softmax") gives classes without probabilities',
            'Train it with objective="multi:softprob"; predict() then gives the same classes.',
        )
    with loading(label):
        booster.set_attr(scikit_learn=None)  # else no other class than its own loads it
        model.load_model(bytearray(booster.save_raw("ubj")))
        model.set_params(n_jobs=1)
    return model


def _classifies(booster: Any, objective: str) -> bool:
    """Return whether it is a classifier: as the file says, or by the objective of a Booster."""
    if kind := json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type"):
        return bool(kind == "classifier")
    return objective.startswith(("binary:", "multi:")) and objective != "binary:logitraw"


def load_catboost(source: SourceModel) -> Any:
    """Return the model in CatBoost's own file as its scikit-learn class, by its loss function.

    UNSUPPORTED_MODEL names features that are not numbers: CatBoost exports none of them to ONNX.
    """
    import catboost

    path = str(source.model_path)
    with loading(source.uri):
        binary = source.model_path.read_bytes().startswith(_CATBOOST_MAGIC)
        kind = "cbm" if binary else "json"
        probe: Any = catboost.CatBoost()
        probe.load_model(path, kind)
        classify = str(probe.get_all_params()["loss_function"]).startswith(_CATBOOST_CLASSIFIERS)
        model: Any = catboost.CatBoostClassifier() if classify else catboost.CatBoostRegressor()
        model.load_model(path, kind)
    policy = str(model.get_all_params().get("grow_policy", "SymmetricTree"))
    if policy != "SymmetricTree":
        raise _unsupported(
            source,
            f"catboost exports symmetric trees only, not those of "
            f"{type(model).__name__}(grow_policy={policy!r})",
            'Train it with grow_policy="SymmetricTree", the default.',
        )
    kinds = (
        model.get_cat_feature_indices(),
        model.get_text_feature_indices(),
        model.get_embedding_feature_indices(),
    )
    if odd := sorted(index for indices in kinds for index in indices):
        names = ", ".join(printable(model.feature_names_[index]) for index in odd)
        raise _unsupported(
            source,
            f"catboost exports numeric features only, and these are categories or text: {names}",
            "Encode them in a scikit-learn Pipeline, or train on numbers.",
        )
    return model


def _load_booster(source: SourceModel) -> Any:
    """Return LightGBM's text file behind scikit-learn's interface."""
    import lightgbm

    from mlctl.optimize.inputs.estimators.boosters import BoosterClassifier, BoosterRegressor

    with loading(source.uri):
        booster = lightgbm.Booster(model_file=str(source.model_path))
        objective = str(booster.dump_model(num_iteration=1).get("objective", ""))
    classify = objective.startswith(("binary", "multiclass"))
    return BoosterClassifier(booster) if classify else BoosterRegressor(booster)


def _kind(model: Any, source: SourceModel) -> Kind:
    from sklearn import base

    checks: Mapping[Kind, Any] = {
        Kind.CLASSIFIER: base.is_classifier,
        Kind.REGRESSOR: base.is_regressor,
        Kind.OUTLIERS: base.is_outlier_detector,
        Kind.CLUSTERER: base.is_clusterer,
    }
    kind = next((kind for kind, check in checks.items() if check(model)), None)
    if kind is None or not hasattr(model, "predict"):
        raise _unsupported(
            source,
            f"{type(model).__name__} is no classifier, regressor, clusterer or outlier detector "
            "that predicts",
        )
    return kind


def _outputs(
    source: SourceModel, model: Any, kind: Kind, classes: np.ndarray | None
) -> tuple[TensorSpec, ...]:
    real = Datatype.FP32 if source.format is ModelFormat.XGBOOST else Datatype.FP64
    if kind is Kind.REGRESSOR:
        targets = _targets(model, source)
        shape = (DYNAMIC,) if targets == 1 else (DYNAMIC, targets)
        return (TensorSpec(name=_free_name(PREDICTION, source), dtype=real, shape=shape),)
    label = Datatype.INT64
    first: tuple[TensorSpec, ...] = ()
    if kind is Kind.OUTLIERS:
        first = (TensorSpec(name=_free_name(SCORE, source), dtype=real, shape=(DYNAMIC,)),)
    if classes is not None:
        label = _label_type(source, model, classes)
        if has_probabilities(model):
            shape = (DYNAMIC, len(classes))
            name = _free_name(PROBABILITIES, source)
            first = (TensorSpec(name=name, dtype=real, shape=shape),)
    return (*first, TensorSpec(name=_free_name(LABEL, source), dtype=label, shape=(DYNAMIC,)))


def _label_type(source: SourceModel, model: Any, classes: np.ndarray) -> Datatype:
    if classes.ndim != 1 or (
        classes.dtype == object and not all(isinstance(x, str) for x in classes)
    ):
        raise _unsupported(
            source,
            f"{describe(model)} predicts several labels in a row, or classes of mixed types",
            "Log one model for each label.",
        )
    if classes.dtype.kind in "OUT":
        return Datatype.BYTES
    if not np.array_equal(classes.astype(np.int64), classes):
        raise _unsupported(
            source, f"the classes of {describe(model)} are fractions; use whole numbers or text"
        )
    return Datatype.INT64


def _targets(model: Any, source: SourceModel) -> int:
    """Return how many numbers the regressor predicts for a row, as it shows for a row of zeros."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import StackingRegressor, VotingRegressor
    from sklearn.multioutput import MultiOutputRegressor

    last = final_step(model)
    if isinstance(last, TransformedTargetRegressor):
        # Its target was one-dimensional where it gives one number.
        return 1 if last._training_dim == 1 else _targets(last.regressor_, source)  # noqa: SLF001
    # Their parts may be pipelines that take columns by name, and no row of zeros.
    if isinstance(last, MultiOutputRegressor):
        return len(last.estimators_)
    if isinstance(last, StackingRegressor | VotingRegressor):
        return 1
    width = _width(source) if last is model else last.n_features_in_
    with loading(f"{source.uri}, {type(last).__name__}"):
        return int(np.asarray(last.predict(np.zeros((1, width)))).size)


def _width(source: SourceModel) -> int:
    """Return the number of features of the signature."""
    specs = source.signature.inputs
    return len(specs) if source.columns else specs[0].shape[1]


def _takes_texts(model: Any) -> bool:
    """Return whether the first step takes a series of texts, and not a table."""
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
    from sklearn.pipeline import Pipeline

    if isinstance(model, Pipeline):
        return _takes_texts(model.steps[0][1])
    return isinstance(model, CountVectorizer | HashingVectorizer)


def final_step(model: Any) -> Any:
    """Return a pipeline's last estimator, or the estimator itself."""
    from sklearn.pipeline import Pipeline

    return final_step(model.steps[-1][1]) if isinstance(model, Pipeline) else model


def describe(model: Any) -> str:
    """Return the class of an estimator, and of a pipeline its steps too."""
    from sklearn.pipeline import Pipeline

    name = type(model).__name__
    if not isinstance(model, Pipeline):
        return name
    steps = [describe(step) for _, step in model.steps if not isinstance(step, str | None)]
    return f"{name} of {', '.join(steps)}"


def _check_inputs(source: SourceModel) -> None:
    specs = source.signature.inputs
    if not source.columns and (len(specs) != 1 or len(specs[0].shape) != 2):
        raise _unsupported(
            source,
            "its signature has tensors that are not one matrix [rows, features]",
            "Log it with a DataFrame, or a matrix, as input_example.",
        )
    texts = [spec.name for spec in specs if is_text(spec)]
    if texts and source.format is not ModelFormat.SKLEARN:
        raise _unsupported(
            source,
            f"{source.format.value} takes numbers, and these columns are text: {', '.join(texts)}",
            "Encode them in a scikit-learn Pipeline, or train on numbers.",
        )


def is_text(spec: TensorSpec) -> bool:
    """Whether a tensor holds text."""
    return spec.dtype is Datatype.BYTES


def _texts(array: np.ndarray) -> np.ndarray:
    """Return an object array of str from one of bytes."""
    found = np.empty(array.shape, object)
    for index, value in enumerate(array.flat):
        found.flat[index] = value.decode()
    return found


def _as_output(array: Any, spec: TensorSpec) -> np.ndarray:
    values = np.asarray(array)
    if len(spec.shape) == 1:
        values = values.reshape(len(values))
    if spec.dtype is not Datatype.BYTES:
        return values.astype(spec.dtype.numpy_name)
    found = np.empty(values.shape, object)
    for index, value in enumerate(values.flat):
        found.flat[index] = str(value).encode()
    return found


def _unsupported(source: SourceModel, reason: str, hint: str | None = None) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, f"{source.uri}: {reason}", hint)
