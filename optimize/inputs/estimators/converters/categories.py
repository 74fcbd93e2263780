"""Convert OneHotEncoder where rare categories share a column: skl2onnx rejects that."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlctl.optimize.inputs.estimators.converters.emit import Emitter


def register_categories() -> None:
    """Replace skl2onnx's converter of OneHotEncoder in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from skl2onnx.common._registration import get_converter, get_shape_calculator
    from sklearn.preprocessing import OneHotEncoder

    plain = get_converter("SklearnOneHotEncoder")
    shape = get_shape_calculator("SklearnOneHotEncoder")

    def infer_shape(operator: Any) -> None:
        (_infer_shape if _has_rare(operator.raw_operator) else shape)(operator)

    def convert(scope: Any, operator: Any, container: Any) -> None:
        (_convert if _has_rare(operator.raw_operator) else plain)(scope, operator, container)

    options = plain.get_allowed_options()
    update_registered_converter(
        OneHotEncoder, "MlctlOneHotEncoder", infer_shape, convert, overwrite=True, options=options
    )


def _has_rare(encoder: Any) -> bool:
    return any(found is not None for found in getattr(encoder, "infrequent_categories_", ()))


def _infer_shape(operator: Any) -> None:
    from skl2onnx.common.data_types import FloatTensorType

    width = len(operator.raw_operator.get_feature_names_out())
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = FloatTensorType([rows, width])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Emit which category each value is, times the matrix of the columns that categories have."""
    encoder = operator.raw_operator
    emit = Emitter(scope, operator, container)
    emit.double = False
    columns: list[str] = []
    for each in operator.inputs:
        for index in range(each.type.shape[1] or 1):
            at = emit.constant(np.array([index]))
            columns.append(emit.node("Gather", each.full_name, at, axis=1))
    parts = []
    for number, (value, known) in enumerate(zip(columns, encoder.categories_, strict=True)):
        found = emit.cast(_is_category(emit, value, known))
        parts.append(emit.node("MatMul", found, emit.number(_columns_of(encoder, number))))
        rare = _rare_column(encoder, number)
        if rare is not None:
            count = emit.node("ReduceSum", found, emit.constant(np.array([1])), keepdims=1)
            unknown = emit.node("Sub", emit.number([1]), count)
            parts[-1] = emit.node("Add", parts[-1], emit.node("Mul", unknown, emit.number([rare])))
    emit.node("Concat", *parts, into=operator.outputs[0].full_name, axis=1)


def _is_category(emit: Emitter, value: str, known: np.ndarray) -> str:
    """Emit bool [rows, categories]; empty text stands for a missing one."""
    if known.dtype.kind in "OUS":
        texts = ["" if each is None or each != each else each for each in known]  # noqa: PLR0124
        return emit.node("Equal", value, emit.constant(np.array([texts], object)))
    from onnx import TensorProto

    numbers = emit.node("Cast", value, to=TensorProto.DOUBLE)
    equal = emit.node("Equal", numbers, emit.constant(known.astype(np.float64).reshape(1, -1)))
    if not np.isnan(known.astype(np.float64)).any():
        return equal
    last = emit.constant(np.isnan(known.astype(np.float64)).reshape(1, -1))
    return emit.node("Or", equal, emit.node("And", emit.node("IsNaN", numbers), last))


def _columns_of(encoder: Any, number: int) -> np.ndarray:
    """Return the columns of each category of a feature, [categories, columns] of 0 and 1."""
    mapping = encoder._default_to_infrequent_mappings[number]  # noqa: SLF001 - nothing public has it
    if mapping is None:
        mapping = np.arange(len(encoder.categories_[number]))
    found = np.eye(int(mapping.max()) + 1)[mapping]
    dropped = None if encoder.drop_idx_ is None else encoder._drop_idx_after_grouping[number]  # noqa: SLF001
    return found if dropped is None else np.delete(found, dropped, axis=1)


def _rare_column(encoder: Any, number: int) -> np.ndarray | None:
    """Return the columns of an unknown category, [columns]; None if it has none."""
    if encoder.handle_unknown not in ("infrequent_if_exist", "warn"):
        return None
    if encoder.infrequent_categories_[number] is None:
        return None
    mapping = encoder._default_to_infrequent_mappings[number]  # noqa: SLF001
    return np.asarray(_columns_of(encoder, number)[int(np.argmax(mapping))])
