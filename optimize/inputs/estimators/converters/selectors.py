"""Convert the selectors of features: skl2onnx emits a graph that does not load for some of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlctl.optimize.inputs.estimators.converters.emit import Emitter


def register_selectors() -> None:
    """Replace skl2onnx's converters of all selectors in this process; idempotent."""
    import sklearn.feature_selection as selection
    from skl2onnx._supported_operators import update_registered_converter

    for model in (
        *(selection.RFE, selection.RFECV, selection.SelectFromModel, selection.VarianceThreshold),
        *(selection.SelectKBest, selection.SelectPercentile, selection.SelectFdr),
        *(selection.SelectFpr, selection.SelectFwe, selection.GenericUnivariateSelect),
        selection.SequentialFeatureSelector,
    ):
        alias = f"Mlctl{model.__name__}"
        update_registered_converter(model, alias, _infer_shape, _convert, overwrite=True)


def _infer_shape(operator: Any) -> None:
    first = operator.inputs[0]
    width = int(operator.raw_operator.get_support().sum())
    operator.outputs[0].type = type(first.type)([first.get_first_dimension(), width])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.operator_converters.common import concatenate_variables

    emit = Emitter(scope, operator, container)
    rows = concatenate_variables(scope, operator.inputs, container)
    kept = emit.constant(np.flatnonzero(operator.raw_operator.get_support()))
    emit.node("Gather", rows, kept, into=operator.outputs[0].full_name, axis=1)
