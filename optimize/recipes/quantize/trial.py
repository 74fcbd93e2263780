"""One session in which any layers can be quantized for a single run, simulated in fp32.

The graph stays in float; every layer gets a switch between its activations and those
activations quantized and restored, and its weight becomes an input with a default. A trial
therefore costs a run and no new graph. The arithmetic is that of the quantized graph except
for the rounding of the integer kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optimize.data import Tensors
from optimize.recipes.quantize.edit import FreshNames, insert, read_graph, write_beside
from optimize.recipes.quantize.layers import Layer
from services.runtime.session import open_session

RestoreWeight = Callable[[np.ndarray, int], np.ndarray]

# The nodes that quantize an activation and restore it; the last one's output is the result.
RoundTrip = Callable[[Any, FreshNames, str], Sequence[Any]]


class SwitchableGraph:
    """The graph `source` with switches; the folder `scratch` must exist as long as it is used.

    `restored_weight` returns a weight after quantization along an axis; `round_trip` is
    None if activations stay in float.
    """

    def __init__(
        self,
        source: Path,
        layers: Sequence[Layer],
        restored_weight: RestoreWeight,
        round_trip: RoundTrip | None,
        scratch: Path,
    ) -> None:
        self._layers = {layer.name: layer for layer in layers}
        self._restored_weight = restored_weight
        self._source = source
        model = read_graph(source, data=False)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._switches = {} if round_trip is None else _add_switches(model, layers, round_trip)
        self._overrides = _open_weights(model.graph, layers)
        self._session = open_session(write_beside(model, source, scratch, "trial.onnx"))

    def run(self, inputs: Tensors, quantized: Collection[str]) -> dict[str, np.ndarray]:
        """Return the outputs with the layers named in `quantized` quantized."""
        feed = dict(inputs)
        for name in quantized:
            if name in self._switches:
                feed[self._switches[name]] = np.array(True)
            if name in self._overrides:
                feed[self._overrides[name]] = self._weight(self._layers[name])
        return self._session.run(feed)

    def _weight(self, layer: Layer) -> np.ndarray:
        from onnx import numpy_helper

        assert layer.weight is not None
        tensor = self._tensors[layer.weight]
        weight = numpy_helper.to_array(tensor, base_dir=str(self._source.parent))
        return self._restored_weight(weight, layer.axis)


def _add_switches(model: Any, layers: Sequence[Layer], round_trip: RoundTrip) -> Mapping[str, str]:
    """Give every layer a boolean input that is False by default; return their names."""
    from onnx import TensorProto, helper

    graph = model.graph
    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    added: dict[str, list[Any]] = {}
    restored: dict[str, str] = {}
    switches: dict[str, str] = {}
    for layer in layers:
        switch = switches[layer.name] = names.new(f"{layer.name}_switch")
        graph.initializer.append(helper.make_tensor(switch, TensorProto.BOOL, [], [False]))
        graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
        node = nodes[layer.name]
        for name in layer.activations:
            if name not in added:
                added[name] = list(round_trip(graph, names, name))
                restored[name] = added[name][-1].output[0]
            chosen = names.new(f"{layer.name}_{name}")
            added[name].append(helper.make_node("Where", [switch, restored[name], name], [chosen]))
            for index, value in enumerate(node.input):
                node.input[index] = chosen if value == name else value
    insert(graph, added, {})
    return switches


def _open_weights(graph: Any, layers: Sequence[Layer]) -> Mapping[str, str]:
    """Make every layer's weight an input with a default; return their names by layer.

    A weight that other nodes read too is copied first.
    """
    from onnx import helper

    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    readers = Counter(name for node in graph.node for name in node.input)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    overrides: dict[str, str] = {}
    for layer in layers:
        if layer.weight is None:
            continue
        tensor, name = tensors[layer.weight], layer.weight
        if readers[name] > 1:
            name = names.new(f"{layer.name}_{name}")
            copy = graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = nodes[layer.name].input[1] = name
        graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        overrides[layer.name] = name
    return overrides
