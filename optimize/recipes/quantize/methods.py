"""The two ways to 8 bits, static and dynamic, as what a search needs of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from optimize.recipes.base import Calibrator, save_graph
from optimize.recipes.quantize.dynamic import make_dynamic, quantizer
from optimize.recipes.quantize.edit import FreshNames, read_graph
from optimize.recipes.quantize.form import (
    Affine,
    QuantForm,
    affine,
    dequantize_weight,
    quantize_weight,
)
from optimize.recipes.quantize.layers import Layer
from optimize.recipes.quantize.observe import Ranges
from optimize.recipes.quantize.static import insert_pairs, make_pair
from optimize.recipes.quantize.trial import SwitchableGraph


class QuantizeMethod(Protocol):
    """Quantizes the layers of the graph `source`.

    `settings` tells a reader what it does, `identity` is different for another arithmetic.
    """

    @property
    def source(self) -> Path: ...

    @property
    def identity(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def write(self, kept: Collection[str], directory: Path) -> None:
        """Write the graph with all layers quantized but those named in `kept`."""
        ...

    def trial(self, scratch: Path) -> SwitchableGraph:
        """The same arithmetic, simulated; see `SwitchableGraph`."""
        ...


@dataclass(frozen=True, slots=True)
class Static:
    """Ranges of the activations are known beforehand, from calibration."""

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
        insert_pairs(model, _without(self.layers, kept), self._table(), self.form)
        save_graph(model, directory)

    def trial(self, scratch: Path) -> SwitchableGraph:
        table = self._table()

        def round_trip(graph: Any, names: FreshNames, activation: str) -> list[Any]:
            return make_pair(graph, names, activation, table[activation], self.form)

        return SwitchableGraph(self.source, self.layers, weight_loss, round_trip, scratch)

    def _table(self) -> dict[str, Affine]:
        return {
            name: affine(bounds.low, bounds.high, self.form.activation)
            for name, bounds in self.ranges.items()
        }


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Ranges of the activations are those of the batch that comes."""

    source: Path
    layers: tuple[Layer, ...]

    @property
    def identity(self) -> str:
        return "dynamic"

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "form": "dynamic U8S8 per channel",
            "activation scale": "one for a whole batch, so neighbours move an answer a little",
        }

    def write(self, kept: Collection[str], directory: Path) -> None:
        model = read_graph(self.source, data=True)
        make_dynamic(model, _without(self.layers, kept))
        save_graph(model, directory)

    def trial(self, scratch: Path) -> SwitchableGraph:
        return SwitchableGraph(self.source, self.layers, weight_loss, _dynamic_round_trip, scratch)


def weight_loss(weight: np.ndarray, axis: int) -> np.ndarray:
    """The weight as its int8 form stands for it."""
    return dequantize_weight(*quantize_weight(weight, axis), axis)


def _dynamic_round_trip(graph: Any, names: FreshNames, activation: str) -> list[Any]:  # noqa: ARG001
    from onnx import helper

    first = quantizer(names, activation)
    restored = names.new(f"{activation}_restored")
    return [first, helper.make_node("DequantizeLinear", first.output, [restored])]


def _without(layers: Sequence[Layer], kept: Collection[str]) -> list[Layer]:
    return [layer for layer in layers if layer.name not in kept]
