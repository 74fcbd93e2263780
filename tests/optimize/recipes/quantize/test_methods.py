"""The quantized graphs against their own arithmetic, done in numpy and by simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from optimize.recipes.base import Calibrator
from optimize.recipes.quantize.build import QuantizeMethod
from optimize.recipes.quantize.calibrate import observed_ranges, observer
from optimize.recipes.quantize.dynamic import Dynamic
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.form import QuantForm, affine, dequantize_weight, quantize_weight
from optimize.recipes.quantize.layers import WEIGHTED, find_layers
from optimize.recipes.quantize.static import Static
from services.runtime.session import open_session
from tests.optimize.recipes.quantize.nets import (
    conv_net,
    image_rows,
    product_net,
    save_net,
    single_net,
    token_rows,
)

ROWS = token_rows(8).inputs


def static(source: Path, scratch: Path, form: QuantForm, inputs: dict[str, np.ndarray]) -> Static:
    scratch.mkdir()
    layers = find_layers(read_graph(source, data=False).graph, form.operators)
    tensors = tuple(dict.fromkeys(name for layer in layers for name in layer.activations))
    ranges = observed_ranges([observer(source, tensors, scratch)(inputs)])
    return Static(source, layers, form, Calibrator.MINMAX, ranges)


def dynamic(source: Path) -> Dynamic:
    return Dynamic(source, find_layers(read_graph(source, data=False).graph, ("MatMul",)))


def answer(method: QuantizeMethod, directory: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    directory.mkdir()
    method.write((), directory)
    onnx.checker.check_model(str(directory / "model.onnx"), full_check=True)
    return open_session(directory / "model.onnx").run(inputs)["y"]


@pytest.mark.parametrize("activation", ["u8", "s8"])
def test_dynamic__a_product__is_that_of_the_rounded_numbers(
    tmp_path: Path, activation: str
) -> None:
    source, inputs = single_net(tmp_path / "net"), dict(ROWS)
    form = QuantForm("u8" if activation == "u8" else "s8", WEIGHTED)
    method = static(source, tmp_path / "scratch", form, inputs)
    bounds = method.ranges["x"]
    parameters = affine(bounds.low, bounds.high, form.activation)
    least, most = (0, 255) if activation == "u8" else (-128, 127)
    integers = (np.rint(inputs["x"] / parameters.scale) + parameters.zero).clip(least, most)
    rounded = (integers - parameters.zero) * parameters.scale
    weight = onnx.numpy_helper.to_array(onnx.load(str(source)).graph.initializer[0])
    expected = rounded @ dequantize_weight(*quantize_weight(weight, 1), 1)
    found = answer(method, tmp_path / "out", inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_dynamic__a_batch_of_zeros__is_zero(tmp_path: Path) -> None:
    inputs = {"x": np.zeros((2, 3, 16), np.float32)}
    found = answer(dynamic(single_net(tmp_path / "net")), tmp_path / "out", inputs)
    assert not found.any()


def test_trial__equals_the_quantized_graph_up_to_rounding(tmp_path: Path) -> None:
    source, inputs = product_net(tmp_path / "net", hard=False), dict(ROWS)
    reference = open_session(source).run(inputs)["y"]
    methods: list[QuantizeMethod] = [
        static(source, tmp_path / "one", QuantForm("s8", WEIGHTED), inputs),
        static(source, tmp_path / "two", QuantForm("u8", WEIGHTED), inputs),
        dynamic(source),
    ]
    for number, method in enumerate(methods):
        real = answer(method, tmp_path / f"out-{number}", inputs)
        scratch = tmp_path / f"trial-{number}"
        scratch.mkdir()
        trial = method.trial(scratch)
        every = [layer.name for layer in method.layers]
        np.testing.assert_allclose(trial.run(inputs, [])["y"], reference, rtol=1e-4, atol=1e-5)
        simulated = trial.run(inputs, every)["y"]
        error = np.linalg.norm(real - reference)
        assert error > 0
        assert np.linalg.norm(simulated - real) < 0.3 * error
        # One at a time, every layer moves the answers on its own.
        for name in every:
            assert 0 < np.linalg.norm(trial.run(inputs, [name])["y"] - reference) < error


def test_method__a_shared_weight__is_stored_once_and_tried_alone(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    shapes = (["batch", "tokens", 16], ["batch", "tokens", 16])
    source = save_net(tmp_path / "net", nodes, {"w": weight}, shapes)
    method = static(source, tmp_path / "scratch", QuantForm("s8", WEIGHTED), dict(ROWS))
    (tmp_path / "trial").mkdir()
    trial = method.trial(tmp_path / "trial")
    answers = [trial.run(ROWS, names)["y"] for names in ([], ["one"], ["two"], ["one", "two"])]
    assert len({found.tobytes() for found in answers}) == 4
    (tmp_path / "out").mkdir()
    method.write(["two"], tmp_path / "out")
    names = {each.name for each in onnx.load(str(tmp_path / "out/model.onnx")).graph.initializer}
    assert {"w", "w_quantized"} <= names
    answer(method, tmp_path / "whole", dict(ROWS))
    whole = onnx.load(str(tmp_path / "whole/model.onnx")).graph
    kinds = [each.name for each in whole.initializer if each.name.startswith("w")]
    assert kinds == ["w_quantized", "w_scale", "w_zero_point"]


def fused(method: QuantizeMethod, root: Path) -> list[str]:
    """The operators of the quantized graph after the runtime has optimized it."""
    import onnxruntime

    runtime: Any = onnxruntime
    (root / "out").mkdir()
    method.write((), root / "out")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(root / "optimized.onnx")
    runtime.InferenceSession(str(root / "out/model.onnx"), options)
    return [node.op_type for node in onnx.load(str(root / "optimized.onnx")).graph.node]


def test_static__unsigned_conv_net__runs_in_integers(tmp_path: Path) -> None:
    """The contract behind leaving biases in float and the pairs where they are."""
    source, inputs = conv_net(tmp_path / "net", hard=False), dict(image_rows(4).inputs)
    form = QuantForm("u8", (*WEIGHTED, "Add", "GlobalAveragePool"))
    kinds = fused(static(source, tmp_path / "scratch", form, inputs), tmp_path)
    assert kinds.count("QLinearConv") == 3
    assert "QLinearAdd" in kinds
    assert "Conv" not in kinds


def test_dynamic__products__are_fused_by_onnxruntime(tmp_path: Path) -> None:
    kinds = fused(dynamic(product_net(tmp_path / "net", hard=False)), tmp_path)
    assert kinds.count("DynamicQuantizeMatMul") == 4
