"""Torch module to ONNX file by torch's exporter, with its failures told in one sentence.

The graph is stripped of source paths and stack traces, so that the same model gives
the same file on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Signature
from registry.quiet import first_line, quiet

OPSET = 20

_DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DynamicControlFlow", "data-dependent")


def export_torch(module: Any, example: tuple[Any, ...], signature: Signature, path: Path) -> None:
    """Export `module` to `path`, dynamic where the signature says -1; EXPORT_FAILED otherwise."""
    import torch

    with quiet():
        try:
            program = torch.onnx.export(
                module,
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=[spec.name for spec in signature.inputs],
                output_names=[spec.name for spec in signature.outputs],
                dynamic_shapes=_dynamic_shapes(signature),
            )
        except Exception as error:  # the model's own code runs in there
            raise _failed(error) from error
        assert program is not None
        _strip(program.model)
        program.save(str(path))


def _dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """One mapping for each input. AUTO lets the exporter find dimensions that must be equal."""
    from torch.export import Dim

    return tuple(
        {at: Dim.AUTO for at, size in enumerate(spec.shape) if size == DYNAMIC}
        for spec in signature.inputs
    )


def _strip(model: Any) -> None:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(model)


def _failed(error: BaseException) -> MlctlError:
    causes = list(_causes(error))
    if any(_is_data_dependent(cause) for cause in causes):
        return MlctlError(
            ErrorCode.EXPORT_FAILED,
            "the model cannot be exported: its control flow depends on the values of a tensor",
            "Rewrite that `if` with torch.cond, or a `while` with torch.while_loop.",
        )
    # The innermost cause is the exporter's reason; what wraps it is advice on debugging.
    return MlctlError(
        ErrorCode.EXPORT_FAILED, f"the model cannot be exported: {first_line(causes[-1])}"
    )


def _is_data_dependent(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(mark in text for mark in _DATA_DEPENDENT)


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__
