"""Reject a source model by its graph, before it runs.

These faults would surface later as a difference in numbers, which names neither the
operator nor the line to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable
from mlctl.optimize.recipes.graphs import graphs
from mlctl.registry.catalog import SourceModel
from mlctl.registry.onnx_file import graph_inputs, zipmaps

_EVAL_HINT = (
    'Call `model.eval()` before you log it: with serialization_format="pt2" the mode is '
    "stored in the graph."
)
_ONNX_EVAL_HINT = "Call `model.eval()` before you export it to ONNX, then log it again."


def check_onnx_source(source: SourceModel, model: Any) -> None:
    """Reject an ONNX model in training mode, or with other inputs and outputs than its signature.

    UNSUPPORTED_MODEL also for an output that is neither a tensor nor made by ZipMap.
    """
    maps = zipmaps(model)
    for value in model.graph.output:
        if value.name not in maps and not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value").removesuffix("_type")
            raise _unsupported(
                f"output {printable(value.name)!r} of {source.uri} is a {kind}, not a tensor", None
            )
    for graph in graphs(model.graph):
        for node in graph.node:
            if node.op_type == "BatchNormalization" and _training_mode(node):
                raise _training(source, "BatchNormalization", _ONNX_EVAL_HINT)
    _check_names(source, model)


def check_torch_source(source: SourceModel, module: Any) -> None:
    """Reject an exported program that was traced in training mode; UNSUPPORTED_MODEL.

    An eager module is switched to evaluation mode when it is loaded; a traced one cannot be.
    """
    import torch

    traced = (part for part in module.modules() if isinstance(part, torch.fx.GraphModule))
    for node in (node for part in traced for node in part.graph.nodes):
        if node.op == "call_function" and _trains(dict(_arguments(node))):
            raise _training(source, node.target.name().partition("::")[2], _EVAL_HINT)


def _check_names(source: SourceModel, model: Any) -> None:
    sides = (
        ("inputs", [value.name for value in graph_inputs(model)]),
        ("outputs", [value.name for value in model.graph.output]),
    )
    for side, found in sides:
        named = [spec.name for spec in getattr(source.signature, side)]
        if sorted(found) != sorted(named):
            raise _unsupported(
                f"the graph of {source.uri} has the {side} {', '.join(map(printable, found))}; "
                f"its signature names {', '.join(map(printable, named))}",
                "Log it again with a signature that has the names of the graph.",
            )


def _training_mode(node: Any) -> bool:
    return any(each.name == "training_mode" and each.i == 1 for each in node.attribute)


def _arguments(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call of a torch operator by their names in its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        yield from zip((argument.name for argument in schema.arguments), node.args, strict=False)
        yield from node.kwargs.items()


def _trains(arguments: dict[str, Any]) -> bool:
    """Return whether an operator with these arguments behaves as in training.

    Not if that changes nothing: without dropout, or for a normalization without running
    statistics, which uses those of the batch in evaluation too.
    """
    training = arguments.get("train") is True or arguments.get("training") is True
    dropout = arguments.get("dropout", arguments.get("p"))
    without_statistics = "running_mean" in arguments and arguments["running_mean"] is None
    return training and dropout != 0 and not without_statistics


def _training(source: SourceModel, operator: str, hint: str) -> MlctlError:
    return _unsupported(
        f"{source.uri} was logged in training mode: its {operator} behaves as in training, so an "
        "answer depends on the other rows of the batch or on chance",
        hint,
    )


def _unsupported(message: str, hint: str | None) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, message, hint)
