"""Constraints on a model's inputs that its graph shows, or that a run proves.

An index that looks up rows of a constant table has a range. Dimensions with one symbolic name
must be equal: torch's exporter gives them one where the model's own code needs that. In a model
that was registered as ONNX a name is just a name, so there the model must fail at other sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bundle.manifest import Axis, InputConstraints
from bundle.tensors import DYNAMIC, Signature
from optimize.data import Tensors
from optimize.source_graph import Exported
from registry.catalog import Flavor
from services.runtime.run_errors import RunError
from services.runtime.session import Session, open_session

# Operators whose outputs have all values of their first input, and no others.
_KEEP_VALUES = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def find_constraints(exported: Exported) -> InputConstraints | None:
    """The constraints of the exported graph; None if it shows none.

    Behind a transform there are none: its inputs are not the graph's.
    """
    if exported.prepared.transform is not None:
        return None
    import onnx

    graph = onnx.load(str(exported.graph), load_external_data=False).graph
    signature = exported.signature
    ranges = _ranges(graph, signature)
    groups = _shared_names(graph, signature)
    if groups and exported.prepared.source.flavor is Flavor.ONNX:
        session = open_session(exported.graph)
        row = exported.baseline.rows.head(1).inputs
        groups = [kept for group in groups if len(kept := _proven(session, row, group)) > 1]
    if not ranges and not groups:
        return None
    return InputConstraints(ranges=ranges, equal_lengths=tuple(groups))


def _ranges(graph: Any, signature: Signature) -> dict[str, tuple[int, int]]:
    """By input the indices that every table takes that is looked up by it."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    readers = defaultdict(list)
    for node in graph.node:
        for place, name in enumerate(node.input):
            readers[name].append((node, place))
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
    for node, place in readers.get(name, ()):
        if node.op_type in _KEEP_VALUES and place == 0 and _stays_integer(node):
            yield from _table_sizes(node.output[0], readers, tables)
        elif node.op_type == "Gather" and place == 1 and node.input[0] in tables:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            yield tables[node.input[0]][axis]


def _stays_integer(node: Any) -> bool:
    """Whether no value changes: a narrow type could wrap it."""
    from onnx import TensorProto

    wide = (TensorProto.INT32, TensorProto.INT64)
    return node.op_type != "Cast" or next(each.i for each in node.attribute) in wide


def _shared_names(graph: Any, signature: Signature) -> list[tuple[Axis, ...]]:
    """Dynamic dimensions of inputs with one symbolic name, but for the first, the rows."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    groups = defaultdict(list)
    for spec in signature.inputs:
        for axis, (size, dim) in enumerate(zip(spec.shape, shapes[spec.name], strict=True)):
            if size == DYNAMIC and dim.dim_param and axis > 0:
                groups[dim.dim_param].append(Axis(input=spec.name, axis=axis))
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _proven(session: Session, row: Tensors, group: Sequence[Axis]) -> tuple[Axis, ...]:
    """Those of `group` that the model cannot take at another size than the rest.

    It must run with all of them at one of the other sizes, or its failures prove nothing.
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
    """Whether the model runs with `axes` at `size`, by values that are cut off or repeated."""
    changed = dict(row)
    for each in axes:
        index = np.arange(size) % changed[each.input].shape[each.axis]
        changed[each.input] = np.take(changed[each.input], index, axis=each.axis)
    try:
        session.run(changed)
    except RunError:
        return False
    return True
