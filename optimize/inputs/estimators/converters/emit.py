"""Short forms for converters that emit nodes into skl2onnx's container."""

from __future__ import annotations

from typing import Any

import numpy as np


class Emitter:
    """Emits nodes for one operator; numbers have the type of its first input.

    Attributes:
        double: whether numbers are float64, and not float32.
    """

    def __init__(self, scope: Any, operator: Any, container: Any) -> None:
        from skl2onnx.common.data_types import DoubleTensorType

        self._scope, self._container = scope, container
        self.double = isinstance(operator.inputs[0].type, DoubleTensorType)

    def node(self, kind: str, *inputs: str, into: str | None = None, **options: Any) -> str:
        """Emit a node and return the name of its output, which is `into` if that is given."""
        name = into or str(self._scope.get_unique_variable_name(kind.lower()))
        self._container.add_node(kind, list(inputs), [name], **options)
        return name

    def pair(self, kind: str, *inputs: str, **options: Any) -> tuple[str, str]:
        """Emit a node with two outputs and return their names."""
        names = [str(self._scope.get_unique_variable_name(kind.lower())) for _ in range(2)]
        self._container.add_node(kind, list(inputs), names, **options)
        return names[0], names[1]

    def declare_text(self, name: str) -> str:
        """Declare `name` as text [rows, any] and return it.

        The output of an operator that ONNX does not define has no type, and ONNX's inference of
        shapes ends the process where RegexFullMatch or another operator then asks for it.
        """
        from onnx import TensorProto, helper

        shape = [None, None]
        self._container.value_info.append(
            helper.make_tensor_value_info(name, TensorProto.STRING, shape)
        )
        return name

    def number(self, values: Any) -> str:
        """Return the name of a constant of numbers."""
        return self.constant(np.asarray(values, np.float64 if self.double else np.float32))

    def constant(self, values: np.ndarray) -> str:
        """Return the name of a constant; arrays of objects hold text."""
        from onnx import TensorProto, helper

        name = str(self._scope.get_unique_variable_name("constant"))
        if values.dtype.kind in "OU":
            kind, flat = TensorProto.STRING, [str(each).encode() for each in values.flat]
        else:
            kind, flat = helper.np_dtype_to_tensor_dtype(values.dtype), values.ravel().tolist()
        self._container.add_initializer(name, kind, list(values.shape), flat)
        return name

    def cast(self, value: str) -> str:
        """Cast to the type of numbers."""
        from onnx import TensorProto

        return self.node("Cast", value, to=TensorProto.DOUBLE if self.double else TensorProto.FLOAT)


def keep_width(operator: Any) -> None:
    """Declare one output with the type of the first input and the columns of all."""
    width = sum(each.type.shape[1] or 0 for each in operator.inputs)
    first = operator.inputs[0]
    operator.outputs[0].type = type(first.type)([first.get_first_dimension(), width or None])
