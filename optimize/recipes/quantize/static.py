"""Static quantization: QuantizeLinear and DequantizeLinear pairs with ranges from calibration.

An activation gets one pair, shared by all quantized layers that read it; layers left in
float read the original. Weights are stored as int8 behind a DequantizeLinear. Outputs and
biases stay as they are: ONNX Runtime moves the pairs and quantizes biases itself while it
loads, and TensorRT rejects int32 biases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optimize.recipes.base import Calibrator, Workbench, save_graph
from optimize.recipes.graphs import drop_unused_weights
from optimize.recipes.quantize.calibrate import Calibration, Ranges
from optimize.recipes.quantize.edit import FreshNames, add_tensor, insert, read_graph
from optimize.recipes.quantize.form import (
    Affine,
    QuantForm,
    affine,
    quantize_weight,
    restored_weight,
)
from optimize.recipes.quantize.layers import WEIGHTED, Layer, find_layers
from optimize.recipes.quantize.trial import SwitchableGraph

_CALIBRATORS = (Calibrator.MINMAX, Calibrator.PERCENTILE, Calibrator.ENTROPY)

# Below this relative L2 to the float graph, another calibrator makes no difference that matters.
_NEAR = 0.01

# Another calibrator than the first must be better by more than this share.
_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Static:
    """A `QuantizeMethod` with the activations' ranges known in advance."""

    source: Path
    layers: tuple[Layer, ...]
    form: QuantForm
    calibrator: Calibrator
    ranges: Ranges

    @property
    def identity(self) -> str:
        return f"static {self.form} {sorted(self._table().items())}"

    @property
    def settings(self) -> Mapping[str, str]:
        return {"form": f"static {self.form.words}", "calibrator": self.calibrator.value}

    def write(self, kept: Collection[str], directory: Path) -> None:
        model = read_graph(self.source, data=True)
        layers = [layer for layer in self.layers if layer.name not in kept]
        insert_pairs(model, layers, self._table(), self.form)
        save_graph(model, directory)

    def trial(self, scratch: Path) -> SwitchableGraph:
        table = self._table()

        def round_trip(graph: Any, names: FreshNames, activation: str) -> list[Any]:
            return _pair(graph, names, activation, table[activation], self.form)

        return SwitchableGraph(self.source, self.layers, restored_weight, round_trip, scratch)

    def _table(self) -> dict[str, Affine]:
        return {
            name: affine(bounds.low, bounds.high, self.form.activation)
            for name, bounds in self.ranges.items()
        }


def static_method(source: Path, directory: Path, form: QuantForm, bench: Workbench) -> Static:
    """Return static quantization with the requested calibrator; ValueError without a layer for it.

    AUTO compares the calibrators: it costs a second pass over the calibration rows and the
    quality of three graphs instead of one, and stops after MinMax if that is good and within
    1 %. The graphs are written inside `directory` and removed.
    """
    layers = find_layers(read_graph(source, data=False).graph, form.operators)
    tensors = tuple(dict.fromkeys(name for layer in layers for name in layer.activations))
    calibration = Calibration(source, tensors, bench)

    def method(calibrator: Calibrator) -> Static:
        ranges = calibration.ranges(calibrator)
        fit = tuple(layer for layer in layers if ranges.keys() >= set(layer.activations))
        return Static(source, fit, form, calibrator, ranges)

    if not any(layer.operator in WEIGHTED for layer in layers):
        raise ValueError("the model has no convolution or matrix product with weights")
    if bench.calibrator is not Calibrator.AUTO:
        return method(bench.calibrator)
    best = method(Calibrator.MINMAX)
    smallest = float("inf")
    for number, calibrator in enumerate(_CALIBRATORS):
        bench.step("calibrators", number, len(_CALIBRATORS))
        candidate = method(calibrator)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            candidate.write((), Path(scratch))
            quality = bench.quality(Path(scratch))
        if quality.distance < smallest * (1 - _NOISE):
            best, smallest = candidate, quality.distance
        if quality.good and quality.distance < _NEAR:
            break
    return best


def insert_pairs(
    model: Any, layers: Iterable[Layer], table: Mapping[str, Affine], form: QuantForm
) -> None:
    """Quantize `layers` of the ONNX model in place; `table` has every activation's parameters."""
    graph = model.graph
    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    added: dict[str, list[Any]] = {}
    replaced: dict[tuple[str, int | None], str] = {}
    for layer in layers:
        node = nodes[layer.name]
        for name in layer.activations:
            if (name, None) not in replaced:
                added[name] = _pair(graph, names, name, table[name], form)
                replaced[name, None] = added[name][-1].output[0]
        if layer.weight is not None:
            key = (layer.weight, layer.axis)
            if key not in replaced:
                reader = _weight(graph, names, weights[layer.weight], layer.axis)
                added.setdefault(layer.weight, []).append(reader)
                replaced[key] = reader.output[0]
            node.input[1] = replaced[key]
        for index, name in enumerate(node.input):
            node.input[index] = replaced.get((name, None), name)
    insert(graph, added, {})
    drop_unused_weights(graph)


def _pair(
    graph: Any, names: FreshNames, name: str, parameters: Affine, form: QuantForm
) -> list[Any]:
    """Return QuantizeLinear and DequantizeLinear for the activation `name`; store constants."""
    from onnx import helper

    zero = np.array(parameters.zero, np.uint8 if form.activation == "u8" else np.int8)
    scale = add_tensor(graph, names.new(f"{name}_scale"), np.array(parameters.scale))
    point = add_tensor(graph, names.new(f"{name}_zero_point"), zero)
    integer, real = names.new(f"{name}_quantized"), names.new(f"{name}_dequantized")
    return [
        helper.make_node(operator, [value, scale, point], [made], name=names.new(f"{made}_node"))
        for operator, value, made in (
            ("QuantizeLinear", name, integer),
            ("DequantizeLinear", integer, real),
        )
    ]


def _weight(graph: Any, names: FreshNames, tensor: Any, axis: int) -> Any:
    from onnx import helper, numpy_helper

    integers, scales = quantize_weight(numpy_helper.to_array(tensor), axis)
    inputs = [
        add_tensor(graph, names.new(f"{tensor.name}_quantized"), integers),
        add_tensor(graph, names.new(f"{tensor.name}_scale"), scales),
        add_tensor(graph, names.new(f"{tensor.name}_zero_point"), np.zeros(len(scales), np.int8)),
    ]
    real = names.new(f"{tensor.name}_dequantized")
    return helper.make_node(
        "DequantizeLinear", inputs, [real], name=names.new(f"{real}_node"), axis=axis
    )
