"""The methods of `onnxruntime.quantization` that the recipes use.

Each writes the graph of a model with any of its layers left in float.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.quiet import quiet
from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import MAX_INLINE_BYTES, save_graph
from mlctl.optimize.recipes.graphs import load_typed, raise_opset, sort_nodes, write_beside
from mlctl.optimize.recipes.observe import observe, show_values
from mlctl.optimize.recipes.quantize.layers import Layer, find_layers, integer_nodes
from mlctl.optimize.recipes.quantize.normalize import read_graph
from mlctl.services.model.int8_kernels import fast_kernels_are_exact
from mlctl.services.model.scorer import split_rows

BATCH = 8

_BITS, _FAST_BITS = 8, 7
WEIGHT_BITS = "weight bits"

# Values beyond stand for infinity, as in masks: no scale has room for them.
_INFINITE = 1e30

_PRODUCTS = ("MatMul",)
_TABLES = ("Gather",)
_CALIBRATED = ("Conv", "Gemm", "MatMul")
# Operators whose quantized kernels write floats.
_PLAIN = ("Gemm", "MatMul")

# Percent of the values that the range of an activation covers.
_PERCENTILE = 99.99
_BINS = 2048

# Products with a smaller share of the weights make a graph that is neither smaller nor faster.
_MIN_SHARE = 0.1

_INT4_BLOCK = 32
_INT4_TENSORRT_BLOCK = 64
_INT4_OPSET, _INT4_IR_VERSION = 21, 10
# The library's level of products with activations rounded to 8 bits, in blocks as the weights are.
_INT8_ACTIVATIONS = 4

Calibrator = Literal["minmax", "percentile"]


class QuantizeMethod(Protocol):
    """A way to quantize the `layers` of a graph; `settings` describes it and is its identity."""

    @property
    def settings(self) -> Mapping[str, str]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def write(self, kept: Collection[str], directory: Path) -> None:
        """Write the graph with all layers quantized but those named in `kept`."""
        ...


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Matrix products whose activations are quantized at run time, LSTMs, and embeddings.

    The scale of an activation is that of the batch it is in.
    """

    source: Path
    per_channel: bool
    weight_bits: int
    layers: tuple[Layer, ...]

    @property
    def settings(self) -> dict[str, str]:
        return {
            "form": f"dynamic U8S8 per {'channel' if self.per_channel else 'tensor'}",
            WEIGHT_BITS: str(self.weight_bits),
            "activation scale": "one for a whole batch, so neighbours move an answer a little",
        }

    def write(self, kept: Collection[str], directory: Path) -> None:
        library = _library()
        model = read_graph(self.source, products=True)
        with quiet():
            quantizer = _library("onnx_quantizer").ONNXQuantizer(
                model,
                self.per_channel,
                self.weight_bits < _BITS,
                library.QuantizationMode.IntegerOps,
                False,  # static
                library.QuantType.QInt8,
                library.QuantType.QUInt8,
                None,
                [],
                _excluded(model, self.layers, kept),
                [*_PRODUCTS, *_TABLES, "LSTM"],
                {"MatMulConstBOnly": True},
            )
            quantizer.quantize_model()
        _save(quantizer.model, directory)


def dynamic_methods(source: Path) -> Iterator[Dynamic]:
    """Yield dynamic quantization of the graph `source`, from the fastest form to the most precise.

    NotApplicableError without a layer for it.
    """
    graph = read_graph(source, products=True).graph
    layers = find_layers(graph, (*_PRODUCTS, *_TABLES, "LSTM"), min_share=_MIN_SHARE)
    for weight_bits, per_channel in product(_weight_bits(), (False, True)):
        yield Dynamic(source, per_channel, weight_bits, layers)


def _weight_bits() -> tuple[int, ...]:
    """Return how many bits the weights may have, the fastest first.

    Kernels that add two products in 16 bits are exact for weights of 7 bits, because
    2 x 255 x 64 < 2**15. ONNX Runtime runs such weights on them wherever exact kernels are asked
    for, and those of 8 bits on slower ones.
    """
    return (_BITS,) if fast_kernels_are_exact() else (_FAST_BITS, _BITS)


@dataclass(frozen=True, slots=True)
class Static:
    """Q/DQ pairs with ranges from calibration.

    For the CPU convolutions, products and the operators between them are quantized, with unsigned
    activations. For TensorRT the inputs of convolutions and matrix products are, symmetrically;
    outputs of convolutions and biases stay in float, so that it can fuse what follows. Outputs of
    products stay in float unless a quantized operator reads them: their kernels write floats as
    fast.
    """

    source: Path
    tensorrt: bool
    per_channel: bool
    weight_bits: int
    calibrator: Calibrator
    layers: tuple[Layer, ...]
    ranges: Any = field(repr=False)

    @property
    def settings(self) -> dict[str, str]:
        form = "S8S8" if self.tensorrt else "U8S8"
        return {
            "form": f"static {form} per {'channel' if self.per_channel else 'tensor'}",
            WEIGHT_BITS: str(self.weight_bits),
            "calibrator": self.calibrator,
        }

    def write(self, kept: Collection[str], directory: Path) -> None:
        library = _library()
        model = read_graph(self.source)
        excluded = set(_excluded(model, self.layers, kept))
        options: dict[str, Any] = {
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
            "OpTypesToExcludeOutputQuantization": list(_PLAIN),
        }
        if self.tensorrt:
            options |= {
                "ActivationSymmetric": True,
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": list(_CALIBRATED),
                "QuantizeBias": False,
            }
            excluded |= {node.name for node in model.graph.node} - {
                name for layer in self.layers for name in layer.nodes
            }
        with quiet():
            quantizer = library.QDQQuantizer(
                model,
                self.per_channel,
                self.weight_bits < _BITS,
                library.QuantType.QInt8,
                library.QuantType.QInt8 if self.tensorrt else library.QuantType.QUInt8,
                self.ranges,
                [],
                sorted(excluded),
                list(_operators(tensorrt=self.tensorrt)),
                options,
            )
            quantizer.quantize_model()
        _save(quantizer.model, directory)


def static_methods(
    source: Path, rows: Rows, directory: Path, *, tensorrt: bool
) -> Iterator[Static]:
    """Yield static quantization from the fastest form to the most precise.

    Each calibrator runs the float graph on `rows` once, with scratch files in `directory`.
    NotApplicableError without a layer for it.
    """
    operators = _operators(tensorrt=tensorrt)
    weighted = _CALIBRATED if tensorrt else ("ConvTranspose", *_TABLES, *_CALIBRATED)
    graph = read_graph(source).graph
    find_layers(graph, weighted)  # before the calibration, which takes its time
    ranges: dict[Calibrator, Any] = {"minmax": _find_ranges(source, rows, directory, operators)}
    unbounded = _unbounded(ranges["minmax"])
    floats = {node.name for node in graph.node if unbounded & {*node.input, *node.output}}
    others = () if tensorrt else integer_nodes(graph, weighted, operators, floats)
    layers = find_layers(graph, weighted, others, floats=floats)
    bits, forms = ((_BITS,), (True,)) if tensorrt else (_weight_bits(), (False, True))
    calibrators: tuple[Calibrator, ...] = ("minmax", "percentile")
    for weight_bits, per_channel, calibrator in product(bits, forms, calibrators):
        if calibrator not in ranges:
            ranges[calibrator] = _cut_ranges(source, rows, directory, ranges["minmax"], unbounded)
        yield Static(
            source, tensorrt, per_channel, weight_bits, calibrator, layers, ranges[calibrator]
        )


def _operators(*, tensorrt: bool) -> tuple[str, ...]:
    """Return the operators that are quantized: for the CPU all that the library can."""
    registry = _library("registry")
    every = {*registry.QDQRegistry, *registry.QLinearOpsRegistry}
    return _CALIBRATED if tensorrt else tuple(sorted(every))


def _find_ranges(source: Path, rows: Rows, directory: Path, operators: Collection[str]) -> Any:
    """Return the smallest and the largest value of each activation."""
    library = _library()
    with tempfile.TemporaryDirectory(dir=directory) as scratch, quiet():
        folder = Path(scratch)
        model = read_graph(source)
        external = model.ByteSize() > MAX_INLINE_BYTES
        save_graph(model, folder)
        found = library.create_calibrator(
            folder / MODEL_NAME,
            list(operators),
            str(folder / "observed.onnx"),
            library.CalibrationMethod.MinMax,
            use_external_data_format=external,
        )
        for batch in split_rows(rows.inputs, BATCH):
            found.collect_data(_OneBatch(batch))
        return found.compute_data()


def _cut_ranges(
    source: Path, rows: Rows, directory: Path, ranges: Any, leave: Collection[str]
) -> Any:
    """Return `ranges` without their rarest values, but for those named in `leave`.

    One histogram between the known limits of each activation takes no more memory for more rows;
    the library's own grows with the ratio of later values to the first ones.
    """
    limits = {
        name: (each.range_value[0].item(), each.range_value[1].item())
        for name, each in ranges.items()
        if name not in leave
    }
    counts = {name: np.zeros(_BINS, np.int64) for name in limits}
    with (
        tempfile.TemporaryDirectory(dir=directory) as plain,
        tempfile.TemporaryDirectory(dir=directory) as shown,
    ):
        save_graph(read_graph(source), Path(plain))
        model = load_typed(Path(plain, MODEL_NAME), data=False)
        show_values(model, limits)
        path = write_beside(model, Path(plain, MODEL_NAME), Path(shown), MODEL_NAME)
        for values in observe(path, rows):
            for name, each in limits.items():
                counts[name] += np.histogram(values[name], _BINS, each)[0]
    cut = {name: _cut(counts[name], *each) for name, each in limits.items()}
    library = _library("calibrate")
    return library.TensorsData(library.CalibrationMethod.MinMax, cut)


def _cut(counts: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the bins that hold _PERCENTILE of the values between `low` and `high`."""
    tail = (1.0 - _PERCENTILE / 100.0) / 2.0
    shares = np.cumsum(counts) / max(1, counts.sum())
    edges = np.linspace(low, high, _BINS + 1)
    first, last = np.searchsorted(shares, (tail, 1.0 - tail))
    return np.array(edges[first], np.float32), np.array(edges[last + 1], np.float32)


class _OneBatch:
    """A data reader of the library: `get_next` returns the batch, then None."""

    def __init__(self, batch: Mapping[str, np.ndarray]) -> None:
        self._batch: Mapping[str, np.ndarray] | None = batch

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        batch, self._batch = self._batch, None
        return batch


def _unbounded(ranges: Any) -> frozenset[str]:
    """Return the activations whose range is not finite, or stands for infinity, as in masks."""
    return frozenset(
        name
        for name, each in ranges.items()
        if not (np.abs(np.asarray(each.range_value, np.float64)) < _INFINITE).all()
    )


@dataclass(frozen=True, slots=True)
class WeightsOnly:
    """4-bit weights in blocks along the inputs of a product.

    For the CPU in ONNX Runtime's own operators, which look such weights up and multiply them with
    activations of 8 bits, scaled per block. For TensorRT as INT4 behind a blocked DequantizeLinear,
    without zero points.
    """

    source: Path
    tensorrt: bool
    layers: tuple[Layer, ...]

    @property
    def settings(self) -> dict[str, str]:
        block = _INT4_TENSORRT_BLOCK if self.tensorrt else _INT4_BLOCK
        return {"method": "weights only", "form": f"INT4 in blocks of {block}"}

    def write(self, kept: Collection[str], directory: Path) -> None:
        formats = _library().QuantFormat
        # The library would write this opset's number into the graph and convert no operator.
        model = raise_opset(read_graph(self.source, products=True), _INT4_OPSET)
        model.ir_version = max(model.ir_version, _INT4_IR_VERSION)
        with quiet():
            quantizer = _library("matmul_nbits_quantizer").MatMulNBitsQuantizer(
                model,
                block_size=_INT4_TENSORRT_BLOCK if self.tensorrt else _INT4_BLOCK,
                is_symmetric=self.tensorrt,
                accuracy_level=None if self.tensorrt else _INT8_ACTIVATIONS,
                quant_format=formats.QDQ if self.tensorrt else formats.QOperator,
                op_types_to_quantize=_PRODUCTS if self.tensorrt else (*_PRODUCTS, *_TABLES),
                nodes_to_exclude=_excluded(model, self.layers, kept),
            )
            quantizer.process()
        _save(quantizer.model, directory)


def weights_method(source: Path, *, tensorrt: bool) -> WeightsOnly:
    """Return 4-bit weights for the graph `source`; NotApplicableError without a layer for it."""
    graph = read_graph(source, products=True).graph
    weighted = _PRODUCTS if tensorrt else (*_PRODUCTS, *_TABLES)
    layers = find_layers(graph, weighted, min_share=_MIN_SHARE)
    return WeightsOnly(source, tensorrt, layers)


def _excluded(model: Any, layers: Collection[Layer], kept: Collection[str]) -> list[str]:
    """Return the nodes that are not in a layer which is quantized."""
    quantized = {name for layer in layers if layer.name not in kept for name in layer.nodes}
    return [node.name for node in model.graph.node if node.name not in quantized]


def _library(module: str = "") -> Any:
    return import_module(f"onnxruntime.quantization.{module}".rstrip("."))


def _save(model: Any, directory: Path) -> None:
    """Write the library's `model`, which has new nodes at the end."""
    # The library's own sort does not see what a branch or a loop body reads.
    sort_nodes(model.model.graph)
    save_graph(model.model, directory)
