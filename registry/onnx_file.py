"""Read and adjust ONNX graphs: which tensors they exchange, and the forms that servers do not take.

`onnx` is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.core.text import printable

Shape = tuple[int, ...]

_ZIPMAP = "ZipMap"
# From this IR version on, weights are no inputs of the graph.
_SEPARATE_WEIGHTS = 4
_SHAPE_HINT = (
    "Give every dimension with --signature NAME=-1,3,224,224; -1 accepts any size, and the first "
    "is the batch."
)


def load_graph(path: Path) -> Any:
    """Return the model in an ONNX file, or in a folder that holds one; UNSUPPORTED_MODEL."""
    import onnx

    if path.is_dir():
        found = sorted(path.glob("*.onnx"))
        if len(found) != 1:
            raise _unsupported(
                f"{path.name} holds {len(found)} .onnx files, expected one",
                "Name the file. A folder that MLflow saved is registered with mlflow.log_model.",
            )
        path = found[0]
    if not path.is_file():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"there is no file {path}",
            "Give the path of an .onnx file, or of a folder with one or with a language model.",
        )
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model if model.ByteSize() < 1 << 31 else str(path))
    except Exception as error:
        raise _unsupported(
            f"{path.name} is not a valid ONNX model: {printable(first_line(error))}",
            "Pickles and checkpoints are not imported: export the model to ONNX first.",
        ) from error
    return model


def graph_inputs(model: Any) -> list[Any]:
    """Return the inputs that callers send; before IR version 4 each weight was an input too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def zipmaps(model: Any) -> dict[str, Any]:
    """Return the ZipMap nodes that make outputs of the graph, by the output's name.

    A ZipMap turns scores [rows, classes] into one map of class to score per row.
    """
    outputs = {value.name for value in model.graph.output}
    return {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == _ZIPMAP and node.output[0] in outputs
    }


def zipmap_classes(node: Any) -> list[int] | list[str]:
    """Return the keys of a ZipMap's maps, in the order of the scores."""
    values = {each.name: each for each in node.attribute}
    if "classlabels_int64s" in values:
        return [int(value) for value in values["classlabels_int64s"].ints]
    return [value.decode() for value in values["classlabels_strings"].strings]


def make_plain(model: Any) -> None:
    """Change `model` so that weights are no inputs, and scores [rows, classes] replace ZipMaps."""
    from onnx import TensorProto, helper

    inputs = graph_inputs(model)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, _SEPARATE_WEIGHTS)
    nodes = zipmaps(model)
    for at, value in enumerate(model.graph.output):
        if value.name in nodes:
            node = nodes[value.name]
            shape: list[str | int | None] = ["rows", len(zipmap_classes(node))]
            model.graph.output[at].CopyFrom(
                helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape)
            )
            node.CopyFrom(helper.make_node("Identity", node.input, node.output))


def fix_inputs(model: Any, constants: Mapping[str, str]) -> None:
    """Turn inputs into constants of the graph; values are numbers, or text for a text input.

    INVALID_INPUT for an unknown input, or a value that is not one of its type.
    """
    from onnx import helper, numpy_helper

    inputs = {value.name: value for value in graph_inputs(model)}
    for name, text in constants.items():
        if name not in inputs:
            raise _invalid(f"the graph has no input {printable(name)!r}", inputs)
        tensor = inputs[name].type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        sizes = [dim.dim_value or 1 for dim in tensor.shape.dim]
        try:
            number = text if dtype.kind == "O" else _number(text, dtype)
            value = np.full(sizes, number, dtype)
        except (ValueError, KeyError, OverflowError):
            raise _invalid(
                f"--constant {printable(name)}={printable(text)}: it is not a value of {dtype.name}"
            ) from None
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        model.graph.input.remove(inputs[name])


def declare_shapes(model: Any, shapes: Mapping[str, Shape]) -> None:
    """Declare the inputs and outputs with other sizes, -1 for any; INVALID_INPUT.

    An exporter without dynamic axes writes the batch size of its example into all of them: if the
    batch of an input becomes dynamic, so does that of each output with the same first size.
    """
    values = {value.name: value for value in (*graph_inputs(model), *model.graph.output)}
    opened: set[int] = set()
    for name, shape in shapes.items():
        if name not in values:
            raise _invalid(f"the graph has no tensor {printable(name)!r}", values)
        dimensions = values[name].type.tensor_type.shape.dim
        known = values[name].type.tensor_type.HasField("shape")
        if known and len(dimensions) != len(shape):
            raise _invalid(
                f"tensor {printable(name)!r} has {len(dimensions)} dimensions in the graph, "
                f"{len(shape)} in --signature"
            )
        if shape[:1] == (DYNAMIC,) and dimensions and dimensions[0].dim_value:
            opened.add(dimensions[0].dim_value)
        _declare(values[name], shape)
    for value in model.graph.output:
        dimensions = value.type.tensor_type.shape.dim
        if value.name not in shapes and dimensions and dimensions[0].dim_value in opened:
            _declare(value, (DYNAMIC, *(_size(dim) for dim in dimensions[1:])))
    if opened:
        del model.graph.value_info[:]  # the sizes inside of the graph followed from the old ones


def graph_signature(model: Any) -> Signature:
    """Return the tensors that callers exchange with a graph, -1 for each size that is not fixed.

    UNSUPPORTED_MODEL for a tensor without a batch, a number of dimensions, or a V2 datatype.
    """
    from onnx import shape_inference

    outputs = {value.name: value for value in model.graph.output}
    if not all(value.type.tensor_type.HasField("shape") for value in outputs.values()):
        inferred = shape_inference.infer_shapes(model)
        outputs = {value.name: value for value in inferred.graph.output}
    classes = {name: len(zipmap_classes(node)) for name, node in zipmaps(model).items()}
    try:
        return Signature(
            inputs=tuple(_spec(value) for value in graph_inputs(model)),
            outputs=tuple(
                TensorSpec(name=name, dtype=Datatype.FP32, shape=(DYNAMIC, classes[name]))
                if name in classes
                else _spec(value)
                for name, value in outputs.items()
            ),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise _unsupported(
            f"the graph's tensors are not usable: {printable(str(problem['input']))!r}: "
            f"{problem['msg']}",
            "Export it with names of letters, digits, '_', '-', '.', '/' and spaces.",
        ) from error


def _spec(value: Any) -> TensorSpec:
    from onnx.helper import tensor_dtype_to_np_dtype

    name = printable(value.name)
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value").removesuffix("_type")
        raise _unsupported(f"tensor {name!r} of the graph is a {kind}, not a tensor")
    tensor = value.type.tensor_type
    try:
        dtype = Datatype.from_numpy_name(tensor_dtype_to_np_dtype(tensor.elem_type).name)
    except ValueError as error:
        raise _unsupported(f"tensor {name!r} of the graph: {error}") from error
    if not tensor.HasField("shape"):
        raise _unsupported(f"tensor {name!r} of the graph has no shape", _SHAPE_HINT)
    shape = tuple(_size(dim) for dim in tensor.shape.dim)
    if not shape:
        raise _unsupported(
            f"input {name!r} of the graph is a single value for all rows",
            f"Fix it with --constant {name}=VALUE.",
        )
    if shape[0] != DYNAMIC:
        raise _unsupported(
            f"tensor {name!r} of the graph has the fixed batch size {shape[0]}",
            "Export it with a dynamic first dimension, or, if the graph runs with any number of "
            f"rows, pass --signature {name}={','.join(map(str, (DYNAMIC, *shape[1:])))}",
        )
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)


def _size(dimension: Any) -> int:
    return int(dimension.dim_value) if dimension.HasField("dim_value") else DYNAMIC


def _declare(value: Any, shape: Shape) -> None:
    tensor = value.type.tensor_type
    del tensor.shape.dim[:]
    for axis, size in enumerate(shape):
        dimension = tensor.shape.dim.add()
        if size == DYNAMIC:
            dimension.dim_param = "batch" if axis == 0 else f"{value.name}_{axis}"
        else:
            dimension.dim_value = size


def _number(text: str, dtype: np.dtype[Any]) -> float | int | bool:
    if dtype.kind == "b":
        return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    if dtype.kind == "f":
        return float(text)
    number = int(text)
    limits = np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise OverflowError
    return number


def _invalid(message: str, names: Sequence[str] | Mapping[str, Any] = ()) -> MlctlError:
    hint = f"It has {', '.join(map(printable, names))}." if names else None
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)


def _unsupported(message: str, hint: str | None = None) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, message, hint)
