"""Static quantization with the calibrator that was asked for, or the best of all."""

from __future__ import annotations

import tempfile
from pathlib import Path

from optimize.recipes.base import Calibrator, Workbench
from optimize.recipes.quantize.calibrate import Calibration
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.form import QuantForm
from optimize.recipes.quantize.layers import WEIGHTED, find_layers
from optimize.recipes.quantize.methods import Static

_TRIED = (Calibrator.MINMAX, Calibrator.PERCENTILE, Calibrator.ENTROPY)

# Nearer to the float graph than this, no calibrator could make a difference that matters.
_NEAR = 0.01

# Another calibrator than the first must be better by more than this share.
_NOISE = 0.05


def static_method(source: Path, directory: Path, form: QuantForm, bench: Workbench) -> Static:
    """Static quantization of `source`; ValueError if it has no layer for it.

    Graphs to compare are made inside `directory` and are gone afterwards.
    AUTO costs a second pass over the calibration rows and the quality of three graphs
    instead of one, and stops after MinMax if that is good and within 1 per cent.
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
    least = float("inf")
    for number, calibrator in enumerate(_TRIED):
        bench.step("calibrators", number, len(_TRIED))
        candidate = method(calibrator)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            candidate.write((), Path(scratch))
            quality = bench.quality(Path(scratch))
        if quality.distance < least * (1 - _NOISE):
            best, least = candidate, quality.distance
        if quality.good and quality.distance < _NEAR:
            break
    return best
