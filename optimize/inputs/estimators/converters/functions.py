"""Convert FunctionTransformer with one of numpy's functions of a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mlctl.optimize.inputs.estimators.converters.emit import Emitter, keep_width

_Emit = Callable[[Emitter, str], str]


def _log1p(emit: Emitter, value: str) -> str:
    return emit.node("Log", emit.node("Add", value, emit.number(1)))


def _expm1(emit: Emitter, value: str) -> str:
    return emit.node("Sub", emit.node("Exp", value), emit.number(1))


def _operator(kind: str) -> _Emit:
    return lambda emit, value: emit.node(kind, value)


def _logarithm(base: float) -> _Emit:
    import math

    return lambda emit, value: emit.node(
        "Div", emit.node("Log", value), emit.number(math.log(base))
    )


# By the name in numpy. float32 rounds 1 + x to 1 for small x; both types are judged on the rows.
_FUNCTIONS: Mapping[str, _Emit] = MappingProxyType(
    {
        "log1p": _log1p,
        "expm1": _expm1,
        "log": _operator("Log"),
        "log2": _logarithm(2),
        "log10": _logarithm(10),
        "exp": _operator("Exp"),
        "sqrt": _operator("Sqrt"),
        "square": lambda emit, value: emit.node("Mul", value, value),
        "abs": _operator("Abs"),
        "absolute": _operator("Abs"),
        "negative": _operator("Neg"),
        "reciprocal": _operator("Reciprocal"),
        "sign": _operator("Sign"),
        "sin": _operator("Sin"),
        "cos": _operator("Cos"),
        "tanh": _operator("Tanh"),
    }
)


def register_functions() -> None:
    """Replace skl2onnx's converter of FunctionTransformer in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from sklearn.preprocessing import FunctionTransformer

    update_registered_converter(
        FunctionTransformer, "MlctlFunctionTransformer", keep_width, _convert, overwrite=True
    )


def emit_function(emit: Emitter, function: Any, value: str) -> str:
    """Emit numpy's `function` of `value`; None is the identity."""
    if function is None:
        return value
    name = getattr(function, "__name__", "")
    if name not in _FUNCTIONS or not _is_numpy(function, name):
        raise NotImplementedError(
            f"the function {name or type(function).__name__} is not supported, only numpy's "
            f"{', '.join(_FUNCTIONS)}; do its work in a transform of mlctl"
        )
    return _FUNCTIONS[name](emit, value)


def _is_numpy(function: Any, name: str) -> bool:
    import numpy as np

    return function is getattr(np, name)


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.operator_converters.common import concatenate_variables

    emit = Emitter(scope, operator, container)
    rows = concatenate_variables(scope, operator.inputs, container)
    value = emit_function(emit, operator.raw_operator.func, rows)
    emit.node("Identity", value, into=operator.outputs[0].full_name)
