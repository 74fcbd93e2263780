"""Models of every format as users log them with MLflow, with rows that they take.

`mlctl optimize` accepts the first ones and rejects the others.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from torch import nn
from xgboost import XGBClassifier, XGBRegressor

from mlctl.registry.onnx_import import read_import, register
from tests.optimize.zoo import models
from tests.support import onnx_models
from tests.support.estimators import as_inputs, customers, spending
from tests.support.text_models import text_pipeline, texts

Arrays = dict[str, np.ndarray]
# Returns `count` rows of a model's inputs, other rows for another seed.
MakeRows = Callable[[int, int], Arrays]

_TRAIN = 600
_CAT = {"iterations": 20, "verbose": 0, "thread_count": 1, "allow_writing_files": False}


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A model to register under `name`, and the rows that it takes."""

    name: str
    format: str
    register: Callable[[str], object]
    rows: MakeRows


def _normal(name: str, *shape: int, dtype: str = "float32") -> MakeRows:
    def rows(count: int, seed: int) -> Arrays:
        values = np.random.default_rng(seed).normal(size=(count, *shape))
        return {name: values.astype(dtype)}

    return rows


def _customers(count: int, seed: int) -> Arrays:
    """Return customers with missing ages and cities, and a city that training lacks."""
    return as_inputs(customers(count, seed, unseen=True))


def _log(flavor: str, model: Any, name: str, **options: Any) -> None:
    import mlflow

    with mlflow.start_run():
        importlib.import_module(f"mlflow.{flavor}").log_model(
            model, name="model", pip_requirements=[], registered_model_name=name, **options
        )


def _encoded(last: Any) -> Pipeline:
    """Return the pipeline of docs/models.md: imputers, scaling, one-hot encoding, an estimator."""
    text = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = [("n", numbers, ["age", "visits"]), ("t", text, ["city", "plan"])]
    first = ColumnTransformer([*columns, ("v", "passthrough", ["vip"])])
    return Pipeline([("columns", first), ("last", last)])


def _fit_and_log(model: Any, rows: Any, target: Any, flavor: str, name: str) -> None:
    from mlflow.models import infer_signature

    model.fit(rows, target)
    options: dict[str, Any] = {}
    if flavor in ("sklearn", "lightgbm"):
        import skops.io

        unknown = skops.io.get_untrusted_types(data=skops.io.dumps(model))
        options = {"serialization_format": "skops", "skops_trusted_types": unknown}
    _log(flavor, model, name, signature=infer_signature(rows, model.predict(rows)), **options)


def _table(name: str, model: Any) -> ModelCase:
    """Return the case of a pipeline on the columns of a table."""

    def log(registered: str) -> None:
        rows = customers(_TRAIN, 1)
        target: Any = spending(rows)
        if is_classifier(model):
            target = np.where(target > 70, "stay", "leave")
        _fit_and_log(_encoded(model), rows, target, "sklearn", registered)

    return ModelCase(name, "sklearn", log, _customers)


def _matrix(name: str, flavor: str, model: Any, *, labels: int = 1) -> ModelCase:
    """Return the case of an estimator on a matrix of four features; `labels` are those of a row."""
    make_rows = _normal("input", 4, dtype="float64")

    def log(registered: str) -> None:
        rows = make_rows(_TRAIN, 3)["input"]
        target = rows[:, 0] * 3 + rows[:, 1] ** 2
        if is_classifier(model):
            target = np.digitize(target, [-1.0, 2.0])
        if labels > 1:
            target = np.stack([target] * labels, axis=1)
        _fit_and_log(model, rows, target, flavor, registered)

    return ModelCase(name, flavor, log, make_rows)


def _categories(flavor: str, model: Any) -> ModelCase:
    """Return the case of boosted trees on a table with a column of text."""
    columns = ["visits", "city"]

    def log(registered: str) -> None:
        rows = customers(_TRAIN, 1)[columns].fillna("unknown")
        if flavor == "xgboost":
            rows["city"] = rows["city"].astype("category")
        model.fit(rows, rows["visits"] > 3)
        from mlflow.models import infer_signature

        example = rows.astype({"city": object})
        signature = infer_signature(example, np.zeros(len(rows), np.int64))
        _log(flavor, model, registered, signature=signature)

    def rows(count: int, seed: int) -> Arrays:
        return as_inputs(customers(count, seed)[columns])

    return ModelCase(f"{flavor}-categories", flavor, log, rows)


def _own_step(rows: np.ndarray) -> np.ndarray:
    return rows


def _torch(
    name: str,
    make: Callable[[], nn.Module],
    rows: MakeRows,
    outputs: Mapping[str, tuple[int, ...]],
    free: tuple[str, ...] = (),
) -> ModelCase:
    """Return the case of a torch module; `free` inputs have a dynamic second dimension."""

    def log(registered: str) -> None:
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

        torch.manual_seed(0)
        example = rows(2, 0)
        inputs: list[Any] = [
            TensorSpec(
                array.dtype,
                (-1, *((-1, *array.shape[2:]) if key in free else array.shape[1:])),
                key,
            )
            for key, array in example.items()
        ]
        answers: list[Any] = [
            TensorSpec(np.dtype("float32"), size, key) for key, size in outputs.items()
        ]
        arrays = tuple(example.values())
        _log(
            "pytorch",
            make().eval(),
            registered,
            signature=ModelSignature(Schema(inputs), Schema(answers)),
            input_example=arrays if len(arrays) > 1 else arrays[0],
            serialization_format="pt2",
        )

    return ModelCase(name, "pytorch", log, rows)


def _tokens(count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    mask = (np.arange(9) < rng.integers(1, 10, (count, 1))).astype(np.int64)
    return {"ids": rng.integers(0, 50, (count, 9)) * mask, "mask": mask}


def _file(
    name: str, make: Callable[[], onnx.ModelProto], rows: MakeRows, *constants: str
) -> ModelCase:
    """Return the case of a plain ONNX file, as `mlctl models import` registers it."""

    def log(registered: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(make(), str(path))
            register(read_import(path, registered, constants=constants))

    return ModelCase(name, "onnx file", log, rows)


def _converted() -> onnx.ModelProto:
    """Return skl2onnx's default graph, which answers with maps of class to score."""
    from skl2onnx.convert import to_onnx

    rows = np.random.default_rng(3).normal(size=(_TRAIN, 4)).astype(np.float32)
    model = LogisticRegression().fit(rows, np.digitize(rows[:, 0], [-0.5, 0.5]))
    graph: onnx.ModelProto = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
    return graph


def _logged_onnx(name: str) -> None:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    real = np.dtype("float32")
    _log(
        "onnx",
        onnx_models.recurrent(),
        name,
        signature=ModelSignature(
            Schema([TensorSpec(real, (-1, -1, 3), "x")]),
            Schema(
                [
                    TensorSpec(real, (-1, 5), "embedding"),
                    TensorSpec(real, (-1, -1, 5), "tokens"),
                ]
            ),
        ),
    )


def _text(name: str, task: str) -> ModelCase:
    def log(registered: str) -> None:
        _log("transformers", text_pipeline(task), registered)

    def rows(count: int, seed: int) -> Arrays:
        return {"text": texts(count, seed)}

    return ModelCase(name, "transformers", log, rows)


def _sequence() -> onnx.ModelProto:
    """Return a graph whose output is a sequence of tensors."""
    helper = onnx.helper
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n", 2])
    output = helper.make_value_info("y", helper.make_sequence_type_proto(kind))
    node = helper.make_node("SplitToSequence", ["x"], ["y"], axis=1)
    return onnx_models.model([node], [onnx_models.value("x", "n", 4)], [output], {})


def _pickled(name: str) -> None:
    rows = np.random.default_rng(3).normal(size=(_TRAIN, 4))
    from mlflow.models import infer_signature

    model = LogisticRegression().fit(rows, rows[:, 0] > 0)
    signature = infer_signature(rows, model.predict(rows))
    _log("sklearn", model, name, signature=signature, serialization_format="cloudpickle")


_FORESTS: dict[str, Any] = {"n_estimators": 20, "random_state": 0}
_TREES: dict[str, Any] = {"n_estimators": 20, "max_depth": 4, "n_jobs": 1, "random_state": 0}
_INPUT = _normal("input", 4, dtype="float64")

ACCEPTED: tuple[ModelCase, ...] = (
    _table("logistic", LogisticRegression()),
    _table("forest", RandomForestClassifier(**_FORESTS)),
    _table("hist-boosting", HistGradientBoostingClassifier(max_iter=20, random_state=0)),
    _table("boosting", GradientBoostingRegressor(**_FORESTS)),
    _table("ridge", Ridge()),
    _table("isolation-forest", IsolationForest(random_state=0)),
    _table("k-means", KMeans(3, n_init=1, random_state=0)),
    _table("support-vectors", SVC(random_state=0)),
    _table("neural-net", MLPClassifier((8,), max_iter=500, tol=1e-2, random_state=0)),
    _matrix("naive-bayes", "sklearn", GaussianNB()),
    _matrix("components", "sklearn", make_pipeline(StandardScaler(), PCA(2), LinearRegression())),
    _matrix("calibrated", "sklearn", CalibratedClassifierCV(LogisticRegression(), cv=2)),
    _matrix("two-targets", "sklearn", Ridge(), labels=2),
    _matrix("xgboost-classes", "xgboost", XGBClassifier(**_TREES)),
    _matrix("xgboost-number", "xgboost", XGBRegressor(**_TREES)),
    _matrix("lightgbm-classes", "lightgbm", LGBMClassifier(verbose=-1, **_TREES)),
    _matrix("lightgbm-number", "lightgbm", LGBMRegressor(verbose=-1, **_TREES)),
    _matrix("catboost-classes", "catboost", CatBoostClassifier(**_CAT)),
    _matrix("catboost-number", "catboost", CatBoostRegressor(**_CAT)),
    _torch("convolutions", models.Residual, _normal("image", 3, 8, 8), {"logits": (-1, 5)}),
    _torch(
        "encoder",
        models.Encoder,
        _tokens,
        {"embedding": (-1, 8), "tokens": (-1, -1, 8)},
        free=("ids", "mask"),
    ),
    _torch(
        "recurrent",
        models.Recurrent,
        _normal("steps", 5, 4),
        {"states": (-1, 5, 10), "last": (-1, 5)},
    ),
    ModelCase("lstm-gru", "onnx", _logged_onnx, _normal("x", 6, 3)),
    _file("zip-map", _converted, _normal("X", 4)),
    _file("weights-as-inputs", onnx_models.weights_as_inputs, _normal("x", 4)),
    _file("threshold", onnx_models.with_threshold, _normal("x", 4), "limit=0.25"),
    _text("review", "text-classification"),
    _text("entities", "token-classification"),
    _text("embedding", "feature-extraction"),
)
REJECTED: tuple[ModelCase, ...] = (
    _matrix("neighbours", "sklearn", KNeighborsClassifier()),
    _matrix(
        "own-step", "sklearn", make_pipeline(FunctionTransformer(_own_step), LinearRegression())
    ),
    _matrix("several-labels", "sklearn", RandomForestClassifier(5), labels=2),
    ModelCase("pickle", "sklearn", _pickled, _INPUT),
    _categories("xgboost", XGBClassifier(enable_categorical=True, **_TREES)),
    _categories("catboost", CatBoostClassifier(cat_features=["city"], **_CAT)),
    _torch("random-numbers", models.Noisy, _normal("x", 4), {"y": (-1, 4)}),
    _torch("running-sum", models.Sorting, _normal("x", 4), {"y": (-1, 4), "sum": (-1,)}),
    _file("sequence", _sequence, _normal("x", 4)),
)
CASES = (*ACCEPTED, *REJECTED)
