"""Proving an exported graph, because exporters fail silently.

A graph is accepted when it is valid, is as dynamic as the signature says, has the
opset asked for, and answers like the source model at several batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Signature, TensorSpec
from optimize.data import Rows, Tensors
from optimize.parity import finite
from optimize.reference import Reference
from registry.quiet import first_line
from services.session import Session

# None of them is a common example size; the largest bucket is covered by the evaluation.
BATCHES = (1, 3, 7)

_ABSOLUTE = 1e-6
_RELATIVE = 1e-3


def check_graph(path: Path, signature: Signature, opset: int | None) -> int:
    """Check the file at `path` and return its opset; EXPORT_FAILED names what is wrong.

    `opset` is the one that was asked for; None takes any.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise _failed(f"the graph is not valid: {first_line(error)}") from error
    model = onnx.load(str(path), load_external_data=False)
    found = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset is not None and found != opset:
        raise _failed(f"the graph has opset {found}, not {opset} as asked")
    _check_side(model.graph.input, signature.inputs, "input")
    _check_side(model.graph.output, signature.outputs, "output")
    return int(found)


def check_parity(reference: Reference, session: Session, rows: Rows) -> None:
    """Compare the graph with the source model at each of BATCHES; EXPORT_FAILED if they differ."""
    for batch in BATCHES:
        inputs = rows.take(np.arange(batch) % rows.count).inputs
        want = reference.run(inputs)
        _check_outputs(want, batch)
        _check_close(want, _run(session, inputs, batch), batch)


def is_row_independent(reference: Reference, rows: Rows) -> bool:
    """Whether f(a ++ b) = f(a) ++ f(b) for the source model: only then may requests be joined."""
    sample = rows.head(BATCHES[-1])
    joined = reference.run(sample.inputs)
    alone = [reference.run(sample.take(np.array([row])).inputs) for row in range(sample.count)]
    return all(
        _close(array, np.concatenate([outputs[name] for outputs in alone]))
        for name, array in joined.items()
    )


def _check_side(values: Sequence[Any], specs: Sequence[TensorSpec], side: str) -> None:
    names, expected = [value.name for value in values], [spec.name for spec in specs]
    if sorted(names) != sorted(expected):
        raise _failed(f"the graph has {side}s {names}, the signature {expected}")
    by_name = {value.name: value for value in values}
    for spec in specs:
        dimensions = by_name[spec.name].type.tensor_type.shape.dim
        for at, (size, found) in enumerate(zip(spec.shape, dimensions, strict=False)):
            if size == DYNAMIC and found.HasField("dim_value"):
                raise _failed(
                    f"dimension {at} of {side} {spec.name!r} became fixed at {found.dim_value}; "
                    "the model's code depends on its size, for example in a loop"
                )


def _check_outputs(outputs: Tensors, batch: int) -> None:
    for name, array in outputs.items():
        if array.shape[:1] != (batch,):
            raise _failed(
                f"output {name!r} has shape {list(array.shape)} for {batch} input rows; "
                "each output needs one entry for each row"
            )
    check_finite(outputs)


def check_finite(outputs: Tensors) -> None:
    """UNSUPPORTED_MODEL if the source model's own answers have NaN or infinite values."""
    if not finite(outputs):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            "the source model answers with NaN or infinite values on rows of the data",
            "Check the model and that the data is scaled as in training.",
        )


def _check_close(want: Tensors, have: Tensors, batch: int) -> None:
    for name, array in want.items():
        if not _close(array, have[name]):
            raise _failed(
                f"output {name!r} of the graph differs from the source model's at {batch} rows"
            )


def _close(want: np.ndarray, have: np.ndarray) -> bool:
    if want.shape != have.shape:
        return False
    scale = float(np.abs(want.astype(np.float64)).max(initial=0.0))
    return bool(
        np.allclose(have, want, rtol=0.0, atol=_ABSOLUTE + _RELATIVE * scale, equal_nan=False)
    )


def _run(session: Session, inputs: Tensors, batch: int) -> dict[str, np.ndarray]:
    try:
        return session.run(inputs)
    except MlctlError:
        raise
    except Exception as error:  # onnxruntime has no public root for its exceptions
        raise _failed(f"the graph does not run with {batch} rows: {first_line(error)}") from error


def _failed(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.EXPORT_FAILED, f"the export is not faithful: {reason}")
