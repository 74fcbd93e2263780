"""Prove an exported graph, because exporters fail silently.

A graph is accepted if its source model is deterministic and finite, if it is valid, has the
signature's names, types and dimensions and the requested opset, and if it answers
like the source model at several sizes of every dynamic dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.parity import finite
from mlctl.optimize.metrics.rounding import close
from mlctl.optimize.proofs.reference import Reference
from mlctl.optimize.proofs.sizes import Resized, resized
from mlctl.services.model.session import Session

# No common example sizes; the evaluation covers the largest bucket.
BATCHES = (1, 3, 7)

# Types whose name in a graph differs from the NumPy type that represents them.
_GRAPH_NAMES = {Datatype.BF16: "bfloat16"}


def check_source(reference: Reference, signature: Signature, rows: Rows) -> None:
    """Run the source model at each of BATCHES, twice; UNSUPPORTED_MODEL names the fault.

    It must return the signature's outputs, finite, one entry per row, and the same
    ones again: no variant could be compared with a model that answers differently each time.
    """
    for batch in BATCHES:
        inputs = _batch(rows, batch)
        outputs, again = reference.run(inputs), reference.run(inputs)
        for spec in signature.outputs:
            _check_output(spec, outputs[spec.name], batch)
        check_finite(outputs)
        for name, array in outputs.items():
            if not close(array, again[name]):
                raise MlctlError(
                    ErrorCode.UNSUPPORTED_MODEL,
                    f"output {name!r} of the source model differs between two runs on the same "
                    "rows",
                    "Log it in evaluation mode, so that dropout is off, without random numbers "
                    "and without state that a call changes.",
                )


def check_graph(path: Path, signature: Signature, opset: int | None) -> int:
    """Check the file at `path` and return its opset; EXPORT_FAILED names the fault.

    `opset` is the requested one; None accepts any.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise _failed(f"it is not valid: {first_line(error)}") from error
    model = onnx.load(str(path), load_external_data=False)
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    found = max(versions, default=0)
    if opset is not None and found != opset:
        raise _failed(f"it has opset {found}, not {opset} as requested")
    _check_side(model.graph.input, signature.inputs, "input")
    _check_side(model.graph.output, signature.outputs, "output")
    return int(found)


def check_parity(reference: Reference, session: Session, signature: Signature, rows: Rows) -> None:
    """Compare the graph with the source model at each of BATCHES, and at other sizes of every
    other dynamic dimension; EXPORT_FAILED if they differ.

    UNSUPPORTED_MODEL if the source model itself takes no other size of a dynamic dimension.
    """
    for batch in BATCHES:
        inputs = _batch(rows, batch)
        _compare(reference.run(inputs), session, inputs, f"at {batch} rows")
    _check_sizes(reference, session, resized(signature, _batch(rows, BATCHES[1])))


def check_finite(outputs: Tensors) -> None:
    """Reject answers of the source model with NaN or infinite values; UNSUPPORTED_MODEL."""
    if not finite(outputs):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            "the source model answers with NaN or infinite values on rows of the data",
            "Check the model and that the data is scaled as in training.",
        )


def _batch(rows: Rows, batch: int) -> Tensors:
    return rows.take(np.arange(batch) % rows.count).inputs


def _check_output(spec: TensorSpec, array: np.ndarray, batch: int) -> None:
    hint = "Log the model again with the signature of its actual outputs."
    shape = list(array.shape)
    if array.shape[:1] != (batch,):
        reason = f"for {batch} input rows; each output needs one entry for each row"
    elif array.dtype != np.dtype(spec.dtype.numpy_name):
        reason = f"and dtype {array.dtype}, its signature says {spec.dtype.numpy_name}"
    elif spec.mismatch(spec.dtype, array.shape):
        reason = f"for {batch} input rows, its signature says {list(spec.shape)}"
    else:
        return
    message = f"output {spec.name!r} of the source model has shape {shape} {reason}"
    raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, message, hint)


def _check_sizes(reference: Reference, session: Session, cases: Sequence[Resized]) -> None:
    """Compare at other sizes; every group of dimensions must run at one of them."""
    open_groups = {group for case in cases for group in case.groups}
    for case in cases:
        try:
            want = reference.run(case.inputs)
        except MlctlError:  # the graph is not at fault if the model rejects the size
            continue
        _compare(want, session, case.inputs, f"with {case.words}")
        open_groups -= case.groups
    if open_groups:
        size = min(open_groups)
        tried = "; ".join(case.words for case in cases if size in case.groups)
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"the signature declares dimensions of size {size} in the data as dynamic, but the "
            f"source model runs with no other size (tried: {tried})",
            "Log it with that size in its signature, instead of -1.",
        )


def _compare(want: Tensors, session: Session, inputs: Tensors, where: str) -> None:
    try:
        have = session.run(inputs)
    except MlctlError:
        raise
    except Exception as error:  # onnxruntime has no public root for its exceptions
        raise _failed(f"it does not run {where}: {first_line(error)}") from error
    for name, array in want.items():
        if not close(array, have[name]):
            raise _failed(f"its output {name!r} differs from the source model's {where}")


def _check_side(values: Sequence[Any], specs: Sequence[TensorSpec], side: str) -> None:
    names, expected = [value.name for value in values], [spec.name for spec in specs]
    if sorted(names) != sorted(expected):
        raise _failed(f"it has {side}s {names}, the signature {expected}")
    by_name = {value.name: value.type.tensor_type for value in values}
    for spec in specs:
        _check_value(by_name[spec.name], spec, f"{side} {spec.name!r}")


def _check_value(tensor: Any, spec: TensorSpec, label: str) -> None:
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = tensor_dtype_to_np_dtype(tensor.elem_type).name
    if dtype != _GRAPH_NAMES.get(spec.dtype, spec.dtype.numpy_name):
        raise _failed(f"{label} has datatype {dtype}, the signature says {spec.dtype.value}")
    if not tensor.HasField("shape"):
        return
    dimensions = tensor.shape.dim
    if len(dimensions) != len(spec.shape):
        raise _failed(f"{label} has {len(dimensions)} dimensions, not {len(spec.shape)}")
    for axis, (size, found) in enumerate(zip(spec.shape, dimensions, strict=True)):
        if found.HasField("dim_value") and found.dim_value != size:
            expected = "dynamic" if size == DYNAMIC else size
            raise _failed(
                f"dimension {axis} of {label} is fixed at {found.dim_value}, "
                f"in the signature it is {expected}"
            )


def _failed(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.EXPORT_FAILED,
        f"the graph is not the model that its signature describes: {reason}",
    )
