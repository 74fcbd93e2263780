"""Convert estimators that combine others: the parts are parsed, so each may be a pipeline.

skl2onnx converts no chain of regressors and no transformed target, and few votes and stacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlctl.optimize.inputs.estimators.converters.emit import Emitter
from mlctl.optimize.inputs.estimators.converters.functions import emit_function

# The operator between a stack's classifiers and its last estimator.
_STACKED = "MlctlStacked"


def register_composites() -> None:
    """Register the converters of this module with skl2onnx in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from skl2onnx.common._registration import register_converter, register_shape_calculator
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import StackingClassifier, VotingClassifier
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.multioutput import RegressorChain

    for model, parse, convert in (
        (RegressorChain, _parse_chain, _convert_chain),
        (TransformedTargetRegressor, _parse_target, _convert_target),
        (VotingClassifier, _parse_votes, _convert_votes),
        (StackingClassifier, _parse_stack, _convert_stack),
    ):
        alias = f"Mlctl{model.__name__}"
        # A pipeline turns zipmap off for every classifier that it ends with.
        options = (
            {"zipmap": [True, False, "columns"]}
            if model in (VotingClassifier, StackingClassifier)
            else None
        )
        update_registered_converter(
            model, alias, _keep_types, convert, overwrite=True, parser=parse, options=options
        )
    for holder in (RandomizedSearchCV, FrozenEstimator):
        alias = f"Mlctl{holder.__name__}"
        update_registered_converter(
            holder, alias, _keep_types, _convert_inner, overwrite=True, parser=_parse_inner
        )
    register_shape_calculator(_STACKED, _keep_types, overwrite=True)
    register_converter(_STACKED, _convert_stacked, overwrite=True)


def _keep_types(operator: Any) -> None:
    """Leave the outputs' types as the parser declared them."""
    del operator


def _parsed(scope: Any, model: Any, inputs: list[Any], parsers: Any) -> list[Any]:
    from skl2onnx._parse import _parse_sklearn

    found: list[Any] = _parse_sklearn(scope, model, inputs, custom_parsers=parsers)
    return found


def _declare(
    scope: Any, model: Any, inputs: list[Any], kinds: list[Any], name: str | None = None
) -> list[Any]:
    """Declare the operator that combines `inputs`, and return its outputs."""
    operator = scope.declare_local_operator(name or f"Mlctl{type(model).__name__}", model)
    operator.inputs = inputs
    for kind in kinds:
        operator.outputs.append(scope.declare_local_variable("combined", kind))
    outputs: list[Any] = operator.outputs
    return outputs


def _parse_inner(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> Any:
    """Take the best estimator of a search, or a frozen one."""
    inner = getattr(model, "best_estimator_", None) or model.estimator
    return _parsed(scope, inner, inputs, custom_parsers)


def _convert_inner(scope: Any, operator: Any, container: Any) -> None:
    del scope, operator, container
    raise AssertionError("its parser declares no operator of it")


def _parse_chain(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> Any:
    """Feed each regressor with the rows and the predictions of those before it."""
    kind = type(inputs[0].type)
    answers: list[Any] = []
    for part in model.estimators_:
        rows = inputs
        if len(inputs) + len(answers) > 1:
            concat = scope.declare_local_operator("SklearnConcat")
            concat.inputs = [*inputs, *answers]
            concat.outputs.append(scope.declare_local_variable("chained", kind([None, None])))
            rows = concat.outputs
        answers += _parsed(scope, part, list(rows), custom_parsers)
    ordered = [answers[at] for at in np.argsort(model.order_)]
    return _declare(scope, model, ordered, [kind([None, len(ordered)])])


def _convert_chain(scope: Any, operator: Any, container: Any) -> None:
    emit = Emitter(scope, operator, container)
    names = [each.full_name for each in operator.inputs]
    emit.node("Concat", *names, into=operator.outputs[0].full_name, axis=1)


def _parse_target(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> Any:
    found = _parsed(scope, model.regressor_, inputs, custom_parsers)
    return _declare(scope, model, found, [type(found[0].type)([None, None])])


def _convert_target(scope: Any, operator: Any, container: Any) -> None:
    """Emit the inverse of the function, or of the scaler, behind the regressor."""
    from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

    emit = Emitter(scope, operator, container)
    transformer, value = operator.raw_operator.transformer_, operator.inputs[0].full_name
    match transformer:
        case FunctionTransformer():
            value = emit_function(emit, transformer.inverse_func, value)
        case StandardScaler():
            if transformer.with_std:
                value = emit.node("Mul", value, emit.number(transformer.scale_))
            if transformer.with_mean:
                value = emit.node("Add", value, emit.number(transformer.mean_))
        case MinMaxScaler():
            value = emit.node("Sub", value, emit.number(transformer.min_))
            value = emit.node("Div", value, emit.number(transformer.scale_))
        case _:
            raise NotImplementedError(
                "TransformedTargetRegressor takes a numpy function, a StandardScaler or a "
                f"MinMaxScaler, not a {type(transformer).__name__}"
            )
    emit.node("Identity", value, into=operator.outputs[0].full_name)


def _parse_votes(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> Any:
    """Take the label of each classifier, or its probabilities if the votes are soft."""
    soft = model.voting == "soft"
    parts = [_parsed(scope, part, inputs, custom_parsers) for part in model.estimators_]
    kinds = [_label_kind(model)]
    if soft:
        kinds.append(type(inputs[0].type)([None, len(model.classes_)]))
    return _declare(scope, model, [part[soft] for part in parts], kinds)


def _convert_votes(scope: Any, operator: Any, container: Any) -> None:
    """Emit the weighted mean of probabilities, or the weighted number of votes, of each class."""
    emit = Emitter(scope, operator, container)
    model = operator.raw_operator
    names = [each.full_name for each in operator.inputs]
    used = [1] * len(names) if model.weights is None else model._weights_not_none  # noqa: SLF001
    soft = model.voting == "soft"
    total = float(np.sum(used)) if soft else 1.0
    shares = []
    for name, weight in zip(names, used, strict=True):
        share = name
        if not soft:
            column = emit.node("Reshape", name, emit.constant(np.array([-1, 1])))
            numbers = emit.constant(np.arange(len(model.classes_)).reshape(1, -1))
            share = emit.node("Equal", column, numbers)
        shares.append(emit.node("Mul", emit.cast(share), emit.number([weight / total])))
    sums = emit.node("Sum", *shares)
    if soft:
        emit.node("Identity", sums, into=operator.outputs[1].full_name)
    index = emit.node("ArgMax", sums, axis=1, keepdims=0)
    emit.node("Gather", _classes(emit, model), index, into=operator.outputs[0].full_name)


def _parse_stack(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> Any:
    """Feed the last estimator with the scores, or labels, of the others, and maybe the rows."""
    kind = type(inputs[0].type)
    answers = [
        _parsed(scope, part, inputs, custom_parsers)[int(method != "predict")]
        for part, method in zip(model.estimators_, model.stack_method_, strict=True)
    ]
    rows = inputs if model.passthrough else []
    width = model.final_estimator_.n_features_in_
    stacked = _declare(scope, model, [*answers, *rows], [kind([None, width])], _STACKED)
    found = _parsed(scope, model.final_estimator_, list(stacked), custom_parsers)
    kinds = [_label_kind(model), kind([None, len(model.classes_)])]
    return _declare(scope, model, found, kinds[: len(found)])


def _convert_stacked(scope: Any, operator: Any, container: Any) -> None:
    """Emit the columns side by side; of two classes only the second one's score."""
    emit = Emitter(scope, operator, container)
    model = operator.raw_operator
    first = operator.outputs[0].type
    emit.double = type(first).__name__.startswith("Double")
    names = [each.full_name for each in operator.inputs]
    columns = []
    for name, method in zip(names, model.stack_method_, strict=False):
        score = name
        if method == "predict":
            score = emit.node("Reshape", name, emit.constant(np.array([-1, 1])))
        elif len(model.classes_) == 2:
            score = emit.node("Gather", name, emit.constant(np.array([1])), axis=1)
        columns.append(emit.cast(score))
    columns += names[len(model.stack_method_) :]
    emit.node("Concat", *columns, into=operator.outputs[0].full_name, axis=1)


def _convert_stack(scope: Any, operator: Any, container: Any) -> None:
    """Emit the class of the last estimator's class number, and its scores."""
    emit = Emitter(scope, operator, container)
    index, *scores = (each.full_name for each in operator.inputs)
    label, *answers = (each.full_name for each in operator.outputs)
    emit.node("Gather", _classes(emit, operator.raw_operator), index, into=label)
    for score, answer in zip(scores, answers, strict=True):
        emit.node("Identity", score, into=answer)


def _label_kind(model: Any) -> Any:
    from skl2onnx.common.data_types import Int64TensorType, StringTensorType

    return (StringTensorType if model.classes_.dtype.kind in "OU" else Int64TensorType)([None])


def _classes(emit: Emitter, model: Any) -> str:
    classes = model.classes_
    return emit.constant(classes if classes.dtype.kind in "OU" else classes.astype(np.int64))
