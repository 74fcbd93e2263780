"""Let classifiers without probabilities be parts of others.

Inside of a pipeline skl2onnx turns the option `zipmap` off for every classifier, and rejects it
where a classifier has no such option. One class against the rest takes both columns of LinearSVC's
scores where it wants the second.
"""

from __future__ import annotations

from typing import Any


def register_classifiers() -> None:
    """Adjust skl2onnx's converters in this process; idempotent."""
    from skl2onnx._supported_operators import sklearn_classifier_list, sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter
    from skl2onnx.operator_converters import one_vs_rest_classifier

    for model in sklearn_classifier_list:
        options = get_converter(sklearn_operator_name_map[model]).get_allowed_options()
        if options is not None:
            options.setdefault("zipmap", [True, False, "columns"])
    module: Any = one_vs_rest_classifier
    module.LinearSVC = _NoClass


class _NoClass:
    """Stands for LinearSVC where no estimator may be one."""
