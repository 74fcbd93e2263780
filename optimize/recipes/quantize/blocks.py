"""4-bit weights: each block of 64 along a weight's inputs has a scale; activations stay in fp32.

The weight is stored as INT4 behind a blocked DequantizeLinear, symmetric, because
TensorRT takes no zero point, and with scales above 0, which it demands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optimize.recipes.base import save_graph
from optimize.recipes.graphs import drop_unused_weights, raise_opset
from optimize.recipes.quantize.edit import FreshNames, add_tensor, insert, read_graph
from optimize.recipes.quantize.layers import Layer
from optimize.recipes.quantize.trial import SwitchableGraph

BLOCK = 64
OPERATORS = ("Gemm", "MatMul")

# The first opset with 4-bit integers and blocks, and the file format it needs.
_OPSET = 21
_IR_VERSION = 10

_LOW, _HIGH = -8, 7

# Clipping a block's largest weight a little may serve the others.
_STEPS = np.array([7.0, 7.5, 8.0, 8.5], np.float32)


@dataclass(frozen=True, slots=True)
class WeightOnly:
    """A `QuantizeMethod` for the weights of matrix products; `layers` are the candidates."""

    source: Path
    layers: tuple[Layer, ...]

    @property
    def settings(self) -> dict[str, str]:
        return {"method": "weights only", "form": f"INT4 in blocks of {BLOCK}"}

    @property
    def identity(self) -> str:
        return f"weights-only int4 {BLOCK}"

    def write(self, kept: Collection[str], directory: Path) -> None:
        """Write the graph with all layers quantized but those named in `kept`."""
        model = raise_opset(read_graph(self.source, data=True), _OPSET)
        model.ir_version = max(model.ir_version, _IR_VERSION)
        quantize_weights(model, [layer for layer in self.layers if layer.name not in kept])
        save_graph(model, directory)

    def trial(self, scratch: Path) -> SwitchableGraph:
        return SwitchableGraph(self.source, self.layers, restored_weight, None, scratch)


def quantize_weights(model: Any, layers: Iterable[Layer]) -> None:
    """Quantize the weights of `layers` of the ONNX model in place."""
    graph = model.graph
    names = FreshNames(graph)
    nodes = {node.name: node for node in graph.node}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    added: dict[str, list[Any]] = {}
    readers: dict[tuple[str, int], str] = {}
    for layer in layers:
        assert layer.weight is not None
        key = (layer.weight, layer.axis)
        if key not in readers:
            node = _reader(graph, names, weights[layer.weight], layer.axis)
            added.setdefault(layer.weight, []).append(node)
            readers[key] = node.output[0]
        nodes[layer.name].input[1] = readers[key]
    insert(graph, added, {})
    drop_unused_weights(graph)


def quantize_blocks(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a 2-d weight as integers from -8 to 7 and the fp32 scales of its blocks.

    Blocks run across the channels at `axis`; the scales have the weight's shape with the
    other dimension divided by BLOCK, rounded up. Each block has the scale, of several that
    clip its largest weight more or less, with the smallest square error.
    """
    blocks = _blocks(weight, axis)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    best = np.full(largest.shape, np.inf, np.float32)
    scales = np.ones_like(largest)
    for step in _STEPS:
        scale = np.where(largest > 0, largest / step, np.float32(1))
        error = np.square(_rounded(blocks, scale) * scale - blocks).sum(axis=-1, keepdims=True)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, scale, scales)
    integers = _rounded(blocks, scales).astype(np.int8)
    inputs = weight.shape[1 - axis]
    stored = integers.reshape(len(integers), -1)[:, :inputs], scales[..., 0]
    return stored if axis == 0 else (stored[0].T.copy(), stored[1].T.copy())


def restored_weight(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return the fp32 weight that the 4-bit form of `weight` stands for."""
    integers, scales = quantize_blocks(weight, axis)
    spread = np.repeat(scales, BLOCK, axis=1 - axis)
    inputs = weight.shape[1 - axis]
    restored: np.ndarray = integers * (spread[:, :inputs] if axis == 0 else spread[:inputs])
    return restored


def _blocks(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return the weight as [channels, blocks, BLOCK], the last block padded with 0."""
    rows = weight if axis == 0 else weight.T
    padding = -rows.shape[1] % BLOCK
    return np.pad(rows, ((0, 0), (0, padding))).reshape(len(rows), -1, BLOCK)


def _rounded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.rint(blocks / scales).clip(_LOW, _HIGH)
    return rounded


def _reader(graph: Any, names: FreshNames, tensor: Any, axis: int) -> Any:
    """Store the weight and its scales; return the node that makes fp32 of them."""
    import ml_dtypes
    from onnx import helper, numpy_helper

    integers, scales = quantize_blocks(numpy_helper.to_array(tensor), axis)
    inputs = [
        add_tensor(graph, names.new(f"{tensor.name}_int4"), integers.astype(ml_dtypes.int4)),
        add_tensor(graph, names.new(f"{tensor.name}_scales"), scales),
    ]
    real = names.new(f"{tensor.name}_dequantized")
    return helper.make_node(
        "DequantizeLinear",
        inputs,
        [real],
        name=names.new(f"{real}_node"),
        axis=1 - axis,
        block_size=BLOCK,
    )
