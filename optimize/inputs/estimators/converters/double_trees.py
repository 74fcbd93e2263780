"""Write trees that compare in float64, as histogram gradient boosting and LightGBM do.

Converters store thresholds as float32, which puts rows whose values lie on a threshold on its other
side: often, since thresholds are chosen among the data's values. Operators of ai.onnx.ml 3 take
float64 thresholds for float64 features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Convert = Callable[[Any, Any, Any], None]

_ML_OPSET = 3
_NUMBERS = frozenset(
    {"nodes_values", "nodes_hitrates", "target_weights", "class_weights", "base_values"}
)


def register_double_trees() -> None:
    """Let skl2onnx and onnxmltools convert these trees so, in this process; idempotent."""
    from onnxmltools.convert.common import _registration as onnxmltools_converters
    from onnxmltools.convert.lightgbm.operator_converters import LightGbm
    from skl2onnx.common import _registration as skl2onnx_converters
    from skl2onnx.operator_converters import random_forest

    forests: Any = random_forest
    for kind, convert in (
        ("Classifier", forests.convert_sklearn_random_forest_classifier),
        ("Regressor", forests.convert_sklearn_random_forest_regressor_converter),
    ):
        name = f"SklearnHistGradientBoosting{kind}"
        options = skl2onnx_converters.get_converter(name).get_allowed_options()
        made = _forest_converter(convert)
        skl2onnx_converters.register_converter(name, made, overwrite=True, options=options)
    made = _lightgbm_converter(LightGbm.convert_lightgbm)
    for kind in ("Classifier", "Regressor", "Ranker"):
        onnxmltools_converters.register_converter(f"Lgbm{kind}", made, overwrite=True)


def _forest_converter(convert: Any) -> Convert:
    def converter(scope: Any, operator: Any, container: Any) -> None:
        if type(operator.inputs[0].type).__name__ == "DoubleTensorType":
            convert(scope, operator, _DoubleTrees(container), op_version=_ML_OPSET)
        else:
            convert(scope, operator, container)

    return converter


def _lightgbm_converter(convert: Any) -> Convert:
    """Return a converter whose trees take float64, although onnxmltools knows only float32."""

    def converter(scope: Any, operator: Any, container: Any) -> None:
        convert(scope, operator, _DoubleTrees(container))

    return converter


class _DoubleTrees:
    """A converter's container, which stores the numbers of trees as float64 tensors."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def add_node(self, op_type: str, inputs: Any, outputs: Any, *rest: Any, **options: Any) -> None:
        """Add a node as the container does."""
        from onnx import numpy_helper

        if op_type.startswith("TreeEnsemble"):
            options["op_version"] = _ML_OPSET
            for name in _NUMBERS & options.keys():
                numbers = np.asarray(options.pop(name), np.float64).ravel()
                if numbers.size:
                    tensor = numpy_helper.from_array(numbers, name)
                    options[f"{name}_as_tensor"] = tensor
        self._container.add_node(op_type, inputs, outputs, *rest, **options)
