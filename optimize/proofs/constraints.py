"""Constraints on a model's inputs, read from its graph or proved by a run.

An index into the rows of a constant table has a range. Dimensions with the same symbolic name
must be equal: torch's exporter names them alike where the model's code needs that. In a model
registered as ONNX the name proves nothing, so there the model must fail at other sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mlctl.bundle.manifest import Axis, InputConstraints
from mlctl.bundle.tensors import DYNAMIC, Signature
from mlctl.optimize.data import Tensors
from mlctl.optimize.proofs.source_graph import ExportedModel
from mlctl.registry.catalog import ModelFormat
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.session import Session, open_session

# Operators whose outputs have the values of their first input.
_KEEP_VALUES = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def find_constraints(exported: ExportedModel) -> InputConstraints | None:
    """Return the constraints of the exported graph; None if it has none.

    None also for a model with a transform, whose inputs are not the graph's.
    """
    if exported.prepared.transform is not None:
        return None
    import onnx

    graph = onnx.load(str(exported.graph), load_external_data=False).graph
    signature = exported.signature
    ranges = _ranges(graph, signature)
    groups = _shared_names(graph, signature)
    if groups and exported.prepared.source.format is ModelFormat.ONNX:
        session = open_session(exported.graph)
        row = exported.baseline.rows.head(1).inputs
        groups = [kept for group in groups if len(kept := _proven(session, row, group)) > 1]
    missing = exported.prepared.missing
    found = InputConstraints(
        ranges=ranges,
        equal_lengths=tuple(groups),
        nullable=tuple(sorted(missing.nullable)),
        optional=tuple(sorted(missing.optional)),
    )
    found = exported.probes.added_to(found)
    return None if found == InputConstraints() else found


def _ranges(graph: Any, signature: Signature) -> dict[str, tuple[int, int]]:
    """Return by input the range of indices that all tables it looks up accept."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    readers = defaultdict(list)
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers[name].append((node, position))
    found = {}
    for spec in signature.inputs:
        sizes = list(_table_sizes(spec.name, readers, tables)) if spec.dtype.is_integer else []
        if sizes:
            size = min(sizes)
            # ONNX counts negative indices from the end.
            found[spec.name] = (0 if spec.dtype.value.startswith("U") else -size, size - 1)
    return found


def _table_sizes(
    name: str, readers: Mapping[str, list[tuple[Any, int]]], tables: Mapping[str, tuple[int, ...]]
) -> Iterator[int]:
    for node, position in readers.get(name, ()):
        if node.op_type in _KEEP_VALUES and position == 0 and _stays_integer(node):
            yield from _table_sizes(node.output[0], readers, tables)
        elif node.op_type == "Gather" and position == 1 and node.input[0] in tables:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            yield tables[node.input[0]][axis]


def _stays_integer(node: Any) -> bool:
    """Return whether no value changes: a narrower type could wrap around."""
    from onnx import TensorProto

    wide = (TensorProto.INT32, TensorProto.INT64)
    return node.op_type != "Cast" or next(each.i for each in node.attribute) in wide


def _shared_names(graph: Any, signature: Signature) -> list[tuple[Axis, ...]]:
    """Return groups of dynamic dimensions with the same symbolic name, without the rows."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    groups = defaultdict(list)
    for spec in signature.inputs:
        for axis, (size, dim) in enumerate(zip(spec.shape, shapes[spec.name], strict=True)):
            if size == DYNAMIC and dim.dim_param and axis > 0:
                groups[dim.dim_param].append(Axis(input=spec.name, axis=axis))
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _proven(session: Session, row: Tensors, group: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return those of `group` that fail at another size than the rest.

    The model must run with all of them at one of the other sizes, or its failures prove nothing.
    Size 1 is tried as well: a model may broadcast it.
    """
    sizes = {row[each.input].shape[each.axis] for each in group}
    if len(sizes) > 1:
        return ()
    (size,) = sizes
    others = {size - 1, size + 1, 1} - {size, 0}
    if not any(_runs(session, row, group, other) for other in others):
        return ()
    return tuple(
        each for each in group if not any(_runs(session, row, [each], size) for size in others)
    )


def _runs(session: Session, row: Tensors, axes: Sequence[Axis], size: int) -> bool:
    """Return whether the model runs with `axes` at `size`, with values cut off or repeated."""
    changed = dict(row)
    for each in axes:
        index = np.arange(size) % changed[each.input].shape[each.axis]
        changed[each.input] = np.take(changed[each.input], index, axis=each.axis)
    try:
        session.run(changed)
    except RunError:
        return False
    return True
