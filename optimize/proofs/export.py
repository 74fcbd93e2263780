"""Export a torch module to an ONNX file, with each failure in one sentence.

The graph is stripped of source paths and stack traces, and its values get the
signature's names, so that the same model gives the same file on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlctl.bundle.tensors import DYNAMIC, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line, quiet

OPSET = 20

_DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DynamicControlFlow", "data-dependent")
_NO_OPERATOR = "No ONNX function found"


def export_torch(module: Any, example: tuple[Any, ...], signature: Signature, path: Path) -> None:
    """Export `module` to `path`, dynamic where the signature says -1; EXPORT_FAILED otherwise.

    `module` takes the inputs in order and returns a tuple of the outputs, as `adapt` makes it.
    """
    import torch

    # torch takes a size of 1 for a constant.
    example = tuple(
        _widened(tensor, spec.shape) for tensor, spec in zip(example, signature.inputs, strict=True)
    )
    with quiet():
        try:
            traced = torch.export.export(
                module, example, dynamic_shapes=_dynamic_shapes(signature), strict=False
            )
            _reject_fixed(traced, signature)
            program = torch.onnx.export(traced, (), dynamo=True, opset_version=OPSET)
        except MlctlError:
            raise
        except Exception as error:  # the model's own code runs in there
            raise _failed(error) from error
        assert program is not None
        _strip(program.model)
        _name(program.model.graph, signature)
        program.save(str(path))


def _widened(tensor: Any, shape: tuple[int, ...]) -> Any:
    for axis, size in enumerate(shape):
        if size == DYNAMIC and tensor.shape[axis] == 1:
            tensor = tensor.repeat_interleave(2, dim=axis)
    return tensor


def _dynamic_shapes(signature: Signature) -> tuple[tuple[dict[int, Any], ...]]:
    """One mapping for each input. AUTO lets the exporter find dimensions that must be equal."""
    from torch.export import Dim

    inputs = tuple(
        {axis: Dim.AUTO for axis, size in enumerate(spec.shape) if size == DYNAMIC}
        for spec in signature.inputs
    )
    return (inputs,)  # the adapter's only parameter is *inputs


def _reject_fixed(traced: Any, signature: Signature) -> None:
    """EXPORT_FAILED if tracing fixed a dynamic dimension.

    The ONNX file does not show it: its inputs are declared as dynamic as requested.
    """
    from torch.fx.experimental.symbolic_shapes import is_concrete_int

    values = {node.name: node.meta.get("val") for node in traced.graph.nodes}
    for spec, name in zip(signature.inputs, traced.graph_signature.user_inputs, strict=True):
        for axis, (declared, size) in enumerate(zip(spec.shape, values[name].shape, strict=True)):
            if declared == DYNAMIC and is_concrete_int(size):
                raise MlctlError(
                    ErrorCode.EXPORT_FAILED,
                    f"dimension {axis} of input {spec.name!r} became fixed at {size}: the model's "
                    "code depends on its size, for example in a loop",
                    "Compute over the whole dimension at once, or log the model with that size "
                    "in its signature; recurrent layers keep the length they were traced with.",
                )


def _strip(model: Any) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(model)


def _name(graph: Any, signature: Signature) -> None:
    """Name inputs and outputs as in the signature, and rename inner values with such a name.

    The usual case is an embedding layer: its output is `embedding`, as the model's may be.
    """
    public = [
        *zip(graph.inputs, (spec.name for spec in signature.inputs), strict=True),
        *zip(graph.outputs, (spec.name for spec in signature.outputs), strict=True),
    ]
    values = list(_values(graph))
    taken = {value.name for value in values} | {name for _, name in public}
    names = {name for _, name in public}
    for value in values:
        if value.name in names:
            value.name = _free_name(value.name, taken)
    for value, name in public:
        value.name = name


def _values(graph: Any) -> Iterator[Any]:
    """Every value of a graph and of its subgraphs."""
    from onnx_ir.traversal import RecursiveGraphIterator

    yield from graph.inputs
    yield from graph.initializers.values()
    for node in RecursiveGraphIterator(graph):
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                yield from attribute.value.inputs
                yield from attribute.value.initializers.values()


def _free_name(name: str, taken: set[str]) -> str:
    number = 1
    while (candidate := f"{name}.inner{number}") in taken:
        number += 1
    taken.add(candidate)
    return candidate


def _failed(error: BaseException) -> MlctlError:
    causes = list(_causes(error))
    if any(_is_data_dependent(cause) for cause in causes):
        return MlctlError(
            ErrorCode.EXPORT_FAILED,
            "the model cannot be exported: its control flow depends on the values of a tensor",
            "Rewrite that `if` with torch.cond, or a `while` with torch.while_loop.",
        )
    # The innermost cause is the reason; the outer ones are advice on debugging.
    reason = first_line(causes[-1])
    return MlctlError(
        ErrorCode.EXPORT_FAILED,
        f"the model cannot be exported: {reason}",
        "Write that operator with torch's own, or log the model in the ONNX flavor."
        if _NO_OPERATOR in reason
        else None,
    )


def _is_data_dependent(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(mark in text for mark in _DATA_DEPENDENT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__
