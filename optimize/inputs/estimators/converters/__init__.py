"""Converters of mlctl for estimators that skl2onnx does not convert, or converts wrongly."""

from __future__ import annotations

from mlctl.optimize.inputs.estimators.converters.categories import register_categories
from mlctl.optimize.inputs.estimators.converters.classifiers import register_classifiers
from mlctl.optimize.inputs.estimators.converters.composite import register_composites
from mlctl.optimize.inputs.estimators.converters.double_trees import register_double_trees
from mlctl.optimize.inputs.estimators.converters.functions import register_functions
from mlctl.optimize.inputs.estimators.converters.imputer import register_imputer
from mlctl.optimize.inputs.estimators.converters.isolation_forest import register_isolation_forest
from mlctl.optimize.inputs.estimators.converters.selectors import register_selectors
from mlctl.optimize.inputs.estimators.converters.text import register_text
from mlctl.optimize.inputs.estimators.converters.trees import register_trees

__all__ = ["register_converters"]


def register_converters() -> None:
    """Register all of them in this process; idempotent."""
    for register in (
        *(register_imputer, register_isolation_forest, register_trees, register_text),
        *(register_functions, register_composites, register_classifiers),
        *(register_selectors, register_double_trees, register_categories),
    ):
        register()
