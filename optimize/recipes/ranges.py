"""Which values of a graph grow too large for fp16 on rows of the data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from optimize.data import Rows
from optimize.recipes.graphs import load_typed
from optimize.recipes.half import is_beyond
from optimize.recipes.quantize.edit import write_beside
from services.runtime.scorer import split_rows
from services.runtime.session import open_session

_ROWS = 32
_BATCH = 8


def values_beyond(source: Path, rows: Rows, limit: float, scratch: Path) -> frozenset[str]:
    """The fp32 inputs and node outputs that exceed `limit` on the first rows.

    Runs the graph with every such value as an output; values inside branches and loop
    bodies are not seen. The graph lies in a folder of `scratch` meanwhile.
    """
    rows = rows.head(_ROWS)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = write_beside(_observed(source), source, Path(folder), "observed.onnx")
        session = open_session(path)
        found = {name for name, array in rows.inputs.items() if _exceeds(array, limit)}
        for part in split_rows(rows.inputs, _BATCH):
            answers = session.run(part)
            found.update(name for name, array in answers.items() if _exceeds(array, limit))
    return frozenset(found)


def _exceeds(array: np.ndarray, limit: float) -> bool:
    return array.dtype == np.float32 and is_beyond(array, limit)


def _observed(source: Path) -> Any:
    from onnx import TensorProto

    model = load_typed(source, data=False)
    graph = model.graph
    taken = {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    graph.output.extend(
        value
        for value in graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
        and value.name in made
        and value.name not in taken
    )
    return model
