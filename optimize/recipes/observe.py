"""The values inside a graph on rows, a few rows at a time so that they take little memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.optimize.data import Rows
from mlctl.services.model.scorer import split_rows
from mlctl.services.model.session import open_session

_MAX_ROWS = 8
# Of all values of the rows that run together: less than the largest batch that is timed needs.
_MAX_BYTES = 32 << 20


def show_values(model: Any, names: Collection[str] | None = None) -> None:
    """Make the fp32 values `names`, or all, that nodes of the typed `model` make its outputs too.

    Values inside branches and loop bodies stay hidden.
    """
    from onnx import TensorProto

    graph = model.graph
    made = {name for node in graph.node for name in node.output}
    made -= {value.name for value in graph.output}
    graph.output.extend(
        value
        for value in graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
        and value.name in made
        and (names is None or value.name in names)
    )


def observe(path: Path, rows: Rows) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs and outputs of the graph at `path` on all `rows`.

    The first row runs alone, and shows how many others can run together.
    """
    session = open_session(path)
    first = rows.head(1).inputs
    found = session.run(first)
    yield {**first, **found}
    size = _MAX_BYTES // max(1, sum(array.nbytes for array in found.values()))
    del found
    others = rows.take(slice(1, None)).inputs
    for part in split_rows(others, max(1, min(_MAX_ROWS, size))):
        yield {**part, **session.run(part)}
