"""Convert SimpleImputer: skl2onnx's own converter takes neither float64 nor missing text."""

from __future__ import annotations

from typing import Any

import numpy as np


def register_imputer() -> None:
    """Replace skl2onnx's converter of SimpleImputer in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from sklearn.impute import SimpleImputer

    update_registered_converter(
        SimpleImputer, "SklearnSimpleImputer", _infer_shape, _convert, overwrite=True
    )


def _infer_shape(operator: Any) -> None:
    width = len(operator.raw_operator.statistics_)
    kind = type(operator.inputs[0].type)
    operator.outputs[0].type = kind([operator.inputs[0].get_first_dimension(), width])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Emit Where(is missing, statistic, value). Empty text stands for missing text."""
    from onnx import TensorProto
    from skl2onnx.common.data_types import DoubleTensorType, StringTensorType
    from skl2onnx.operator_converters.common import concatenate_variables

    imputer, kind = operator.raw_operator, operator.inputs[0].type
    if imputer.add_indicator:
        raise NotImplementedError("SimpleImputer(add_indicator=True) is not supported")
    rows = concatenate_variables(scope, operator.inputs, container)
    statistics: list[Any] = list(imputer.statistics_)
    fills: list[Any]
    if isinstance(kind, StringTensorType):
        element, nothing = TensorProto.STRING, ""
        fills = [str(value).encode() for value in statistics]
        if isinstance(imputer.missing_values, str):
            nothing = imputer.missing_values
        missing = _equal(scope, container, rows, element, [nothing.encode()])
    else:
        element = TensorProto.DOUBLE if isinstance(kind, DoubleTensorType) else TensorProto.FLOAT
        fills = [float(value) for value in statistics]
        if np.isnan(fills).any():
            raise NotImplementedError("SimpleImputer drops a column that is always missing")
        if _is_nan(imputer.missing_values):
            missing = scope.get_unique_variable_name("missing")
            container.add_node("IsNaN", [rows], [missing], op_version=13)
        else:
            missing = _equal(scope, container, rows, element, [float(imputer.missing_values)])
    fill = scope.get_unique_variable_name("fill")
    container.add_initializer(fill, element, [1, len(fills)], fills)
    container.add_node(
        "Where", [missing, fill, rows], [operator.outputs[0].full_name], op_version=9
    )


def _equal(scope: Any, container: Any, rows: str, element: int, values: list[Any]) -> str:
    value, missing = (scope.get_unique_variable_name(name) for name in ("value", "missing"))
    container.add_initializer(value, element, [1], values)
    container.add_node("Equal", [rows, value], [missing], op_version=19)
    return str(missing)


def _is_nan(value: object) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
