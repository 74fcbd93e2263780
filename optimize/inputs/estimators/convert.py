"""Convert an estimator to an ONNX graph with the inputs and outputs of its signature.

skl2onnx, onnxmltools and CatBoost convert the estimator to a graph whose inputs are matrices. Nodes
around it turn the signature's columns into these matrices, and its answers into the signature's
outputs.

Numbers are computed in float64, as scikit-learn does, wherever ONNX Runtime has kernels for it.
Trees get what their library compares: float64 in LightGBM and histogram gradient boosting, float32
in scikit-learn's own trees and XGBoost, which round their features as well.
"""

from __future__ import annotations

import re
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.tensors import TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line, quiet
from mlctl.core.text import printable
from mlctl.optimize.data import Tensors
from mlctl.optimize.inputs.estimators.boosters import (
    finish_catboost,
    finish_lightgbm,
    finish_xgboost,
    plain_lightgbm,
    plain_xgboost,
)
from mlctl.optimize.inputs.estimators.estimator import (
    LABEL,
    PREDICTION,
    PROBABILITIES,
    SCORE,
    Estimator,
    Kind,
    final_step,
    has_probabilities,
    is_text,
    load_xgboost,
)
from mlctl.optimize.inputs.estimators.skops_file import objects
from mlctl.registry.catalog import ModelFormat
from mlctl.registry.onnx_file import make_plain
from mlctl.services.model.session import open_session

_OPSET = 20
_ML_OPSET = 3
# Versions that every supported ONNX Runtime reads.
_IR_VERSION = 10
# Names of tensors have no colons, so neither prefix can make the name of a column or of an output.
_OWN = "mlctl:"
_CONVERTED = "converter:"
_MATRIX = "rows"
# Relative difference of numbers that float32 arithmetic explains.
_NEAR = 1e-5

# What libraries say of a type without a converter, and what in their errors helps no user.
_NO_CONVERTER = re.compile(r"find a shape calculator for type '<class '[\w.]*?(\w+)'>'")
_TWO_OUTPUTS = "at most 1 input(s) is(are) supported"
_NOISE = re.compile(
    r"Load model from \S+ failed:|\S+\.(?:cc|cpp|h):\d+:?"
    r"|,? *[Yy]ou may raise an iss?ue at \S+|\[\d\d:\d\d:\d\d\] "
)

_ANY_INSTEAD = (
    "docs/models.md lists what converts. Replace that step, or do its work in a transform."
)
_INSTEAD = {
    "HashingVectorizer": "Use TfidfVectorizer or CountVectorizer, which keep their vocabulary.",
    "RandomTreesEmbedding": "Train it with sparse_output=False.",
    "MissingIndicator": "Add columns that say what is missing to the table, before the model.",
}

# Forests average votes, so two classes often have equal shares. float32 sums differ in the last
# digits and would decide such a tie by chance: shares are rounded before they are compared.
_VOTING = ("sklearn.tree", "sklearn.ensemble._forest")
_SHARES = 1e6

# Estimators that round their features to float32 before they compare them.
_FLOAT32_TREES = tuple(
    f"sklearn.{name}" for name in ("tree", "ensemble._forest", "ensemble._gb", "ensemble._iforest")
)


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to convert: the type of numbers, and whether the last step gets float32."""

    double: bool
    last_in_float: bool


def convert(estimator: Estimator, path: Path, example: Tensors) -> None:
    """Write the estimator's graph to `path`; EXPORT_FAILED with the converter's reason.

    Takes the first form that ONNX Runtime runs on `example` with the estimator's own answers, or
    the nearest one; the proofs judge it afterwards.
    """
    import onnx

    failure: Exception | None = None
    best: tuple[float, Any] | None = None
    expected = estimator.run(example)
    for form in _forms(estimator):
        try:
            with quiet():
                model = _wrap(estimator, _converted(estimator, form), form)
                onnx.save_model(model, str(path))
                found = open_session(path).run(example)
        except Exception as error:  # noqa: BLE001 - converters raise anything
            failure = error
            continue
        distance = _distance(expected, found)
        if best is None or distance < best[0]:
            best = distance, model
        if distance <= _NEAR:
            break
    if best is None:
        assert failure is not None
        culprit = _culprit(estimator.model, failure)
        raise MlctlError(
            ErrorCode.EXPORT_FAILED,
            f"{culprit} cannot be converted to ONNX: {_reason(failure)}",
            next((way for name, way in _INSTEAD.items() if name in culprit), _ANY_INSTEAD),
        )
    onnx.save_model(best[1], str(path))


def _culprit(model: Any, failure: Exception) -> str:
    """Return the name of the part that was converted when `failure` was raised, and whose it is."""
    from sklearn.base import BaseEstimator, is_clusterer

    whole, part = type(model).__name__, ""
    if match := _NO_CONVERTER.search(str(failure)):
        part = match[1]
    if _TWO_OUTPUTS in str(failure):
        found = (each for each, _ in objects(model) if isinstance(each, BaseEstimator))
        part = next((type(each).__name__ for each in found if is_clusterer(each)), "")
    frames = [frame for frame, _ in traceback.walk_tb(failure.__traceback__)]
    for frame in () if part else reversed(frames):
        operator = frame.f_locals.get("operator")
        step = getattr(operator, "raw_operator", frame.f_locals.get("model"))
        if isinstance(step, BaseEstimator):
            part = type(step).__name__
            break
    return whole if part in ("", whole) else f"{part} in this {whole}"


def _reason(failure: Exception) -> str:
    """Return why in a sentence: without paths, objects and pleas of the libraries."""
    if _NO_CONVERTER.search(str(failure)):
        return "there is no converter for it"
    if _TWO_OUTPUTS in str(failure):
        return "before another step it would give labels beside its distances"
    if isinstance(failure, KeyError):
        return f"its converter knows nothing of {failure}"
    return printable(_NOISE.sub("", first_line(failure)).strip())


def _forms(estimator: Estimator) -> list[_Form]:
    if estimator.source.format is not ModelFormat.SKLEARN:
        double = estimator.source.format is ModelFormat.LIGHTGBM
        return [_Form(double=double, last_in_float=False)]
    if type(final_step(estimator.model)).__module__.startswith(_FLOAT32_TREES):
        return [_Form(double=True, last_in_float=True), _Form(double=False, last_in_float=False)]
    return [
        _Form(double=True, last_in_float=False),
        _Form(double=True, last_in_float=True),
        _Form(double=False, last_in_float=False),
    ]


def _distance(expected: Tensors, found: Tensors) -> float:
    """Return the largest difference relative to the largest number.

    It is infinite for other labels and for another number of answers.
    """
    worst = 0.0
    for name, array in expected.items():
        if array.shape != found[name].shape:
            return float("inf")
        if array.dtype.kind == "f":
            size = float(np.abs(array).max(initial=0.0)) or 1.0
            worst = max(worst, float(np.abs(array - found[name]).max(initial=0.0)) / size)
        elif not np.array_equal(array, found[name]):
            return float("inf")
    return worst


def _converted(estimator: Estimator, form: _Form) -> Any:
    """Return the converter's model; its outputs are in the converter's order."""
    match estimator.source.format:
        case ModelFormat.SKLEARN:
            return _from_sklearn(estimator, form)
        case ModelFormat.XGBOOST:
            return _from_xgboost(estimator)
        case ModelFormat.CATBOOST:
            return _from_catboost(estimator)
        case _:
            return _from_lightgbm(estimator)


def _from_sklearn(estimator: Estimator, form: _Form) -> Any:
    from skl2onnx.convert import to_onnx
    from skl2onnx.sklapi.cast_transformer import CastTransformer
    from sklearn.multiclass import OneVsOneClassifier
    from sklearn.pipeline import Pipeline

    from mlctl.optimize.inputs.estimators.converters import register_converters

    register_converters()
    model = estimator.model
    for part, _ in objects(model):
        if isinstance(part, OneVsOneClassifier) and part.classes_.dtype.kind in "OU":
            raise NotImplementedError(
                "OneVsOneClassifier with text as classes has no ONNX form; train on class numbers"
            )
    if form.last_in_float:
        steps = list(_steps(model))
        cast = CastTransformer(dtype=np.float32)
        model = Pipeline([*steps[:-1], ("mlctl_cast", cast), steps[-1]])
    types = _sklearn_types(estimator, double=form.double)
    with _dense(model):
        return to_onnx(
            model,
            initial_types=types,
            options=_options(model),
            target_opset={"": _OPSET, "ai.onnx.ml": _ML_OPSET},
        )


@contextmanager
def _dense(model: Any) -> Iterator[None]:
    """Let discretizers give matrices that are not sparse: a graph has no others."""
    from sklearn.preprocessing import KBinsDiscretizer

    parts = [part for part, _ in objects(model) if isinstance(part, KBinsDiscretizer)]
    sparse = [part for part in parts if part.encode == "onehot"]
    for part in sparse:
        part.encode = "onehot-dense"
    try:
        yield
    finally:
        for part in sparse:
            part.encode = "onehot"


def _options(model: Any) -> dict[int, dict[str, bool]]:
    """Return the converter's options of each classifier in `model`, by its id.

    Scores stay a matrix; a classifier without probabilities gives the scores that it decides by.
    """
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter
    from sklearn.base import BaseEstimator, is_classifier
    from sklearn.calibration import _CalibratedClassifier

    parts = [part for part, _ in objects(model)]
    # Calibration begins with the scores of its classifiers, even if these have probabilities.
    scored = {
        id(final_step(part.estimator))
        for part in parts
        if isinstance(part, _CalibratedClassifier) and hasattr(part.estimator, "decision_function")
    }
    found = {}
    for part in parts:
        if not isinstance(part, BaseEstimator) or not is_classifier(part):
            continue
        name = sklearn_operator_name_map.get(type(part))
        allowed = () if name is None else get_converter(name).get_allowed_options() or ()
        wanted = {"zipmap": False, "raw_scores": id(part) in scored or not has_probabilities(part)}
        found[id(part)] = {each: value for each, value in wanted.items() if each in allowed}
    return found


def _steps(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the steps of a pipeline and of a pipeline at its end."""
    from sklearn.pipeline import Pipeline

    if not isinstance(model, Pipeline):
        yield "mlctl_model", model
        return
    for name, step in model.steps[:-1]:
        if step is not None and step != "passthrough":
            yield name, step
    for name, step in _steps(model.steps[-1][1]):
        yield f"last_{name}", step


def _sklearn_types(estimator: Estimator, *, double: bool) -> list[tuple[str, Any]]:
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType

    number = DoubleTensorType if double else FloatTensorType
    specs = estimator.source.signature.inputs
    if _takes_columns(estimator):
        return [
            (spec.name, (StringTensorType if is_text(spec) else number)([None, 1]))
            for spec in specs
        ]
    texts = {is_text(spec) for spec in specs}
    if len(texts) > 1:
        raise ValueError(
            "the first step gets columns of text and of numbers at once; select them with a "
            "ColumnTransformer"
        )
    width = specs[0].shape[1] if not estimator.source.columns else len(specs)
    return [(_MATRIX, (StringTensorType if texts == {True} else number)([None, width]))]


def _takes_columns(estimator: Estimator) -> bool:
    """Return whether the first step selects columns by name."""
    from sklearn.compose import ColumnTransformer

    if estimator.source.format is not ModelFormat.SKLEARN or not estimator.source.columns:
        return False
    return isinstance(next(iter(_steps(estimator.model)))[1], ColumnTransformer)


def _from_xgboost(estimator: Estimator) -> Any:
    from onnxmltools.convert.common.data_types import FloatTensorType
    from onnxmltools.convert.main import convert_xgboost

    # The converter takes no names of features; this is another copy of the model.
    model = load_xgboost(estimator.source.model_path, estimator.source.uri)
    model._Booster = booster = plain_xgboost(model.get_booster())  # noqa: SLF001
    booster.feature_names = booster.feature_types = None
    width = int(booster.num_features())
    types = [(_MATRIX, FloatTensorType([None, width]))]
    converted = convert_xgboost(model, initial_types=types)
    if estimator.kind is Kind.REGRESSOR:
        finish_xgboost(converted, booster)
    return converted


def _from_lightgbm(estimator: Estimator) -> Any:
    """Return the graph of the Booster: its labels are class numbers."""
    from onnxmltools.convert.common.data_types import FloatTensorType
    from onnxmltools.convert.main import convert_lightgbm

    from mlctl.optimize.inputs.estimators.converters import register_converters

    register_converters()
    model = getattr(estimator.model, "booster", estimator.model)
    booster = plain_lightgbm(getattr(model, "booster_", model))
    types = [(_MATRIX, FloatTensorType([None, int(booster.num_feature())]))]
    converted = convert_lightgbm(booster, initial_types=types, zipmap=False)
    finish_lightgbm(converted, booster, _MATRIX)
    return converted


def _from_catboost(estimator: Estimator) -> Any:
    """Return CatBoost's own export, with scores instead of maps of class to score."""
    import onnx

    classes = estimator.classes
    if classes is not None and classes.dtype == bool:
        raise NotImplementedError("CatBoost exports no classes True and False; train on 0 and 1")
    if len(estimator.source.signature.outputs[0].shape) == 2 and classes is None:
        raise NotImplementedError("CatBoost exports one target; log one model for each target")
    with tempfile.TemporaryDirectory(prefix="mlctl-catboost-") as folder:
        path = Path(folder) / "model.onnx"
        estimator.model.save_model(str(path), format="onnx")
        model = onnx.load(str(path))
    make_plain(model)
    finish_catboost(model, str(estimator.model.get_all_params()["loss_function"]))
    model.graph.input[0].name = _MATRIX
    for node in model.graph.node:
        node.input[:] = [_MATRIX if name == "features" else name for name in node.input]
    return model


def _wrap(estimator: Estimator, model: Any, form: _Form) -> Any:
    """Return the model with the signature's inputs and outputs."""
    from onnx import TensorProto, helper

    graph = model.graph
    number = TensorProto.DOUBLE if form.double else TensorProto.FLOAT
    inner_inputs = [value.name for value in graph.input]
    inner_outputs = [value.name for value in graph.output]
    _add_prefix(graph)
    parts = _Parts(helper)
    _feed(estimator, parts, inner_inputs, number)
    _answer(estimator, parts, inner_outputs)
    specs = estimator.source.signature
    nodes = [*parts.before, *graph.node, *parts.after]
    wrapped = helper.make_graph(
        nodes,
        "estimator",
        [_value(spec) for spec in specs.inputs],
        [_value(spec) for spec in specs.outputs],
        [*graph.initializer, *parts.initializers],
        value_info=graph.value_info,
    )
    versions = {each.domain: each.version for each in model.opset_import}
    # onnxmltools names the oldest version of its operators, which mean the same in this one.
    versions |= {"": _OPSET, "ai.onnx.ml": _ML_OPSET}
    return helper.make_model(
        wrapped,
        opset_imports=[helper.make_opsetid(*item) for item in sorted(versions.items())],
        ir_version=_IR_VERSION,
        producer_name="mlctl",
        functions=model.functions,
    )


class _Parts:
    """Nodes before and after the converter's graph, and their constants."""

    def __init__(self, helper: Any) -> None:
        self._helper = helper
        self.before: list[Any] = []
        self.after: list[Any] = []
        self.initializers: list[Any] = []

    def node(
        self, nodes: list[Any], kind: str, inputs: list[str], name: str, **options: Any
    ) -> str:
        """Append a node with the output `name`, and return that name."""
        nodes.append(self._helper.make_node(kind, inputs, [name], **options))
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        """Return the name of a constant, which is stored once."""
        from onnx import numpy_helper

        name = f"{_OWN}{name}"
        if all(each.name != name for each in self.initializers):
            self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def shape(self, *sizes: int) -> str:
        """Return the name of a constant for Reshape."""
        return self.constant(f"shape{'x'.join(map(str, sizes))}", np.array(sizes, np.int64))


def _feed(estimator: Estimator, parts: _Parts, inner: list[str], number: int) -> None:
    """Make the converter's inputs of the signature's."""
    specs = estimator.source.signature.inputs
    columns: Mapping[str, str] = {spec.name: _matrix(spec, parts, number) for spec in specs}
    for name in inner:
        if name == _MATRIX and not _takes_columns(estimator):
            made = list(columns.values())
            kind, options = ("Identity", {}) if len(made) == 1 else ("Concat", {"axis": 1})
            parts.node(parts.before, kind, made, f"{_CONVERTED}{name}", **options)
        else:
            parts.node(parts.before, "Identity", [columns[name]], f"{_CONVERTED}{name}")


def _matrix(spec: TensorSpec, parts: _Parts, number: int) -> str:
    """Return the name of an input as [rows, columns] of text or of `number`."""
    name = spec.name
    if len(spec.shape) == 1:
        name = parts.node(
            parts.before, "Reshape", [name, parts.shape(-1, 1)], f"{_OWN}column.{spec.name}"
        )
    if not is_text(spec):
        name = parts.node(parts.before, "Cast", [name], f"{_OWN}number.{spec.name}", to=number)
    return name


def _answer(estimator: Estimator, parts: _Parts, inner: list[str]) -> None:
    """Make the signature's outputs of the converter's: the label, then scores, or one number."""
    from onnx import helper

    names: tuple[str, ...]
    if estimator.kind is Kind.REGRESSOR:
        names = (PREDICTION,)
    elif estimator.kind is Kind.OUTLIERS:
        names = (LABEL, SCORE)
    elif has_probabilities(estimator.model) and estimator.kind is Kind.CLASSIFIER:
        names = (LABEL, PROBABILITIES)
    else:
        names = (LABEL,)
    specs = {spec.name: spec for spec in estimator.source.signature.outputs}
    if PROBABILITIES in names and _decides(estimator):
        _vote(estimator, parts, f"{_CONVERTED}{inner[1]}")
        names, inner = (PROBABILITIES,), inner[1:]
    for name, found in zip(names, inner, strict=False):
        spec, value = specs[estimator.output_name(name)], f"{_CONVERTED}{found}"
        if not is_text(spec):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype.numpy_name))
            value = parts.node(parts.after, "Cast", [value], f"{_OWN}cast.{name}", to=kind)
        shape = parts.shape(*(-1, *spec.shape[1:]))
        parts.node(parts.after, "Reshape", [value, shape], spec.name)


def _decides(estimator: Estimator) -> bool:
    """Return whether the label is made of the probabilities, and not the converter's."""
    last = type(final_step(estimator.model)).__module__
    return last.startswith(_VOTING) or estimator.source.format is ModelFormat.LIGHTGBM


def _vote(estimator: Estimator, parts: _Parts, shares: str) -> None:
    """Make the label of the class with the largest share, the first of equal ones."""
    assert estimator.classes is not None
    factor = parts.constant("shares", np.array(_SHARES, np.float32))
    scaled = parts.node(parts.after, "Mul", [shares, factor], f"{_OWN}scaled")
    rounded = parts.node(parts.after, "Round", [scaled], f"{_OWN}rounded")
    options = {"axis": 1, "keepdims": 0}
    index = parts.node(parts.after, "ArgMax", [rounded], f"{_OWN}index", **options)
    classes = estimator.classes
    texts = classes.dtype.kind in "OU"
    values = classes.astype(object) if texts else classes.astype(np.int64)
    parts.node(
        parts.after,
        "Gather",
        [parts.constant("classes", values), index],
        estimator.output_name(LABEL),
    )


def _value(spec: TensorSpec) -> Any:
    from onnx import TensorProto, helper

    kind = TensorProto.STRING
    if not is_text(spec):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype.numpy_name))
    return helper.make_tensor_value_info(
        spec.name, kind, ["rows", *(size if size >= 0 else None for size in spec.shape[1:])]
    )


def _add_prefix(graph: Any) -> None:
    """Rename all values, in the bodies of loops too: see `_CONVERTED`."""
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = f"{_CONVERTED}{value.name}"
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [f"{_CONVERTED}{value}" if value else "" for value in values]
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _add_prefix(body)
