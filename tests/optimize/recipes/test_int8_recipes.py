"""The INT8 recipes from graph to files: forms, the search, resuming, determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from mlctl.core.files import sha256_file
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import NotApplicableError, Quality, Recipe, Workbench
from mlctl.optimize.recipes.quantize import methods, search
from mlctl.optimize.recipes.quantized import Int8Dynamic, Int8Static, Int8Trt
from mlctl.services.model.int8_kernels import fast_kernels_are_exact
from mlctl.services.model.session import open_session
from tests.optimize.recipes.quantize.nets import (
    Shelf,
    conv_net,
    distance,
    image_rows,
    product_net,
    save_net,
    single_net,
    token_rows,
    workbench,
)

STATIC: list[Recipe] = [Int8Static(), Int8Trt()]
ALL: list[Recipe] = [*STATIC, Int8Dynamic()]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def out(tmp_path: Path, name: str = "out") -> Path:
    directory = tmp_path / name
    directory.mkdir()
    return directory


def graph(directory: Path) -> Any:
    model = onnx.load(str(directory / "model.onnx"))
    onnx.checker.check_model(model, full_check=True)
    return model.graph


def operators(directory: Path) -> set[str]:
    return {node.op_type for node in graph(directory).node}


def reads(directory: Path, name: str) -> list[str]:
    return list(next(node for node in graph(directory).node if node.name == name).input)


def largest_weight(directory: Path) -> int:
    return max(
        int(np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max())
        for tensor in graph(directory).initializer
        if tensor.data_type == onnx.TensorProto.INT8 and tensor.dims
    )


def content(directory: Path) -> tuple[list[str], dict[str, list[float]]]:
    """Nodes and constants."""
    found = graph(directory)
    constants = {each.name: onnx.numpy_helper.to_array(each).tolist() for each in found.initializer}
    return [str(node) for node in found.node], constants


@pytest.mark.parametrize("recipe", STATIC, ids=lambda recipe: recipe.name)
def test_int8__an_easy_conv_net__is_quantized_whole(tmp_path: Path, recipe: Recipe) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    details = recipe.build(source, directory, workbench(source, image_rows()))
    assert details.layers == ()
    assert details.settings == {
        "form": "static U8S8 per tensor"
        if recipe.name == "int8-static"
        else "static S8S8 per channel",
        "weight bits": "8" if recipe.name == "int8-trt" or fast_kernels_are_exact() else "7",
        "calibrator": "minmax",
        "calibration rows": "40",
        "layers quantized": "4",
        "layers left in float": "0",
    }
    assert distance(source, directory, image_rows()) < 0.05
    assert [path.name for path in directory.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("net", "rows", "product"),
    [(conv_net, image_rows(), "Gemm"), (product_net, token_rows(), "MatMul")],
)
def test_int8_static__an_output_of_a_product__is_not_quantized(
    tmp_path: Path, net: Callable[..., Path], rows: Rows, product: str
) -> None:
    source, directory = net(tmp_path / "net", hard=False), out(tmp_path)
    Int8Static().build(source, directory, workbench(source, rows))
    found = graph(directory)
    assert next(node.op_type for node in found.node if "y" in node.output) == product
    read = {name for node in found.node for name in node.input}
    assert {tensor.name for tensor in found.initializer} <= read
    # The kernels of the library's own session: no product is left in float.
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    runtime.InferenceSession(directory / "model.onnx", options, ["CPUExecutionProvider"])
    kernels = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not kernels & {"Gemm", "MatMul", "FusedGemm", "FusedMatMul"}


def test_int8_trt__the_layer_that_spoils_a_conv_net__stays_in_float(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=True), out(tmp_path)
    steps: list[tuple[str, int, int]] = []
    bench = workbench(source, image_rows(), steps=steps)
    details = Int8Trt().build(source, directory, bench)
    assert [each.layer for each in details.layers if each.kept_in_float] == ["third"]
    assert details.layers[0].layer == "third"
    assert details.layers[0].operator == "Conv"
    assert details.layers[0].distance > 2 * details.layers[1].distance
    assert details.settings["layers left in float"] == "1"
    assert reads(directory, "third") == ["d", "w3"]
    assert distance(source, directory, image_rows()) < 0.05
    searched = [step for step in steps if step[0] == "sensitivity"]
    assert [done for _, done, _ in searched] == list(range(1, searched[0][2] + 1))


def test_int8_static__both_layers_around_a_hard_activation__stay_in_float(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=True), out(tmp_path)
    details = Int8Static().build(source, directory, workbench(source, image_rows()))
    assert {each.layer for each in details.layers if each.kept_in_float} == {"second", "third"}
    assert reads(directory, "third") == ["d", "w3"]
    assert distance(source, directory, image_rows()) < 0.05


@pytest.mark.parametrize("recipe", [Int8Trt(), Int8Dynamic()], ids=lambda recipe: recipe.name)
def test_int8__the_product_that_spoils_a_transformer__stays_in_float(
    tmp_path: Path, recipe: Recipe
) -> None:
    source, directory = product_net(tmp_path / "net", hard=True), out(tmp_path)
    details = recipe.build(source, directory, workbench(source, token_rows()))
    assert [each.layer for each in details.layers if each.kept_in_float] == ["third"]
    assert reads(directory, "third") == ["r2", "w3"]
    assert distance(source, directory, token_rows()) < 0.05
    dynamic = isinstance(recipe, Int8Dynamic)
    assert ("DynamicQuantizeLinear" in operators(directory)) is dynamic


def test_int8_trt__form__is_symmetric_with_float_biases_and_residuals(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    Int8Trt().build(source, directory, workbench(source, image_rows()))
    found = graph(directory)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in found.initializer}
    pairs = [node for node in found.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs
    for node in pairs:
        zero = constants[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()
    assert reads(directory, "first")[2] == "b"
    assert constants["b"].dtype == np.float32
    # Outputs stay in float, so that TensorRT can fuse what follows.
    assert reads(directory, "residual") == ["e", "b1_DequantizeLinear_Output"]


def test_int8_static__form__has_zero_points_and_quantizes_the_residual(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    Int8Static().build(source, directory, workbench(source, image_rows()))
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph(directory).initializer
    }
    assert constants["x_zero_point"].dtype == np.uint8
    assert constants["x_zero_point"] > 0
    assert all("Dequantize" in name for name in reads(directory, "residual"))


def test_int8_dynamic__a_head_and_a_table__are_quantized_and_the_convolution_is_not(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(8)
    shapes = {"w0": (16, 3, 4, 4), "w1": (64, 64), "bias": (64,), "table": (32, 16)}
    weights: dict[str, np.ndarray] = {
        name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights |= {"flat": np.array([0, 64], np.int64), "index": np.arange(4)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["p"], name="patches", strides=[4, 4]),
        helper.make_node("Reshape", ["p", "flat"], ["f"], name="flatten"),
        helper.make_node("Gather", ["table", "index"], ["g"], name="look"),
        helper.make_node("Flatten", ["g"], ["h"], axis=0),
        helper.make_node("Add", ["f", "h"], ["s"], name="sum"),
        helper.make_node("Gemm", ["s", "w1", "bias"], ["y"], name="head", transB=1),
    ]
    source = save_net(tmp_path / "net", nodes, weights, (["batch", 3, 8, 8], ["batch", 64]))
    directory = out(tmp_path)
    details = Int8Dynamic().build(source, directory, workbench(source, image_rows()))
    assert details.settings["form"] == "dynamic U8S8 per tensor"
    assert {"Conv", "DynamicQuantizeLinear", "MatMulInteger"} <= operators(directory)
    types = {tensor.name: tensor.data_type for tensor in graph(directory).initializer}
    assert types["table_quantized"] == onnx.TensorProto.UINT8
    assert types["w1_quantized"] == onnx.TensorProto.INT8
    assert types["w0"] == onnx.TensorProto.FLOAT
    assert distance(source, directory, image_rows()) < 0.05


def test_int8_dynamic__channels_of_unlike_size__get_a_scale_each(tmp_path: Path) -> None:
    weight = np.random.default_rng(7).normal(size=(16, 8)).astype(np.float32)
    weight *= 10.0 ** np.arange(-4, 4, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="only"),
        helper.make_node("Div", ["m", "size"], ["y"], name="same_size"),
    ]
    arrays = {"w": weight, "size": 10.0 ** np.arange(-4, 4, dtype=np.float32)}
    shapes: tuple[list[Any], list[Any]] = (["batch", "tokens", 16], ["batch", "tokens", 8])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    details = Int8Dynamic().build(source, out(tmp_path), workbench(source, token_rows()))
    assert details.settings["form"] == "dynamic U8S8 per channel"
    assert details.settings["layers quantized"] == "1"


@pytest.mark.parametrize("recipe", [Int8Static(), Int8Dynamic()], ids=lambda recipe: recipe.name)
def test_int8__a_form_without_kernel__leaves_the_others(tmp_path: Path, recipe: Recipe) -> None:
    # ONNX Runtime has no products with a scale per channel for weights of three dimensions.
    weight = np.random.default_rng(7).normal(size=(6, 16, 8)).astype(np.float32)
    weight *= 10.0 ** np.arange(-4, 4, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="only"),
        helper.make_node("Div", ["m", "size"], ["y"], name="same_size"),
    ]
    arrays = {"w": weight, "size": 10.0 ** np.arange(-4, 4, dtype=np.float32)}
    shapes: tuple[list[Any], list[Any]] = (["batch", 6, 1, 16], ["batch", 6, 1, 8])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    rows = Rows({"x": token_rows().inputs["x"][:, :, None]}, None)
    details = recipe.build(source, out(tmp_path), workbench(source, rows))
    assert details.settings["form"].endswith("per tensor")
    assert distance(source, tmp_path / "out", rows) > 0.05


@pytest.mark.parametrize("recipe", [Int8Static(), Int8Dynamic()], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(("exact", "bits"), [(True, 8), (False, 7)])
def test_int8__kernels_that_are_exact_for_7_bits__get_such_weights_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, *, exact: bool, bits: int
) -> None:
    monkeypatch.setattr(methods, "fast_kernels_are_exact", lambda: exact)
    source, directory = product_net(tmp_path / "net", hard=False), out(tmp_path)
    details = recipe.build(source, directory, workbench(source, token_rows()))
    assert details.settings["weight bits"] == str(bits)
    assert largest_weight(directory) in ((63, 64) if bits == 7 else (127, 128))
    assert distance(source, directory, token_rows()) < 0.05


@pytest.mark.parametrize("recipe", [Int8Static(), Int8Dynamic()], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(
    ("good", "bits", "remark"),
    [
        ({63, 64}, "7", ""),
        ({127, 128}, "8", "the weights have 8 bits: with 7 the calibration rows gave too little"),
        (set(), "7", "the weights have 7 bits: with 8 the calibration rows gave too little"),
    ],
)
def test_int8__weights_of_other_bits_missed__says_what_they_gave(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: Recipe,
    good: set[int],
    bits: str,
    remark: str,
) -> None:
    monkeypatch.setattr(methods, "fast_kernels_are_exact", lambda: False)
    source = single_net(tmp_path / "net")
    bench = replace(
        workbench(source, token_rows()),
        quality=lambda directory: Quality(0.1, largest_weight(directory) in good, "too little"),
    )
    details = recipe.build(source, out(tmp_path), bench)
    assert details.settings["weight bits"] == bits
    assert details.remark == remark


def test_int8__impossible_goals__say_so_after_one_try(tmp_path: Path) -> None:
    source = product_net(tmp_path / "net", hard=False)
    steps: list[tuple[str, int, int]] = []
    bench = workbench(source, token_rows(), limit=0.0, steps=steps)
    details = Int8Dynamic().build(source, out(tmp_path), bench)
    assert "; with 2 of 4 layers in float: relative L2" in details.settings["search"]
    assert [step for step in steps if step[0] != "sensitivity"] == [("layers left in float", 2, 4)]
    # What all of them cost is there to be judged and shown.
    assert details.settings["layers quantized"] == "4"
    assert not any(layer.kept_in_float for layer in details.layers)
    assert distance(source, tmp_path / "out", token_rows()) > 0


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_int8__a_net_without_weights__is_rejected(tmp_path: Path, recipe: Recipe) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    source = save_net(tmp_path / "net", nodes, {}, (["batch", 16], ["batch", 16]))
    with pytest.raises(NotApplicableError, match=r"the model has no .*MatMul$"):
        recipe.build(source, out(tmp_path), workbench(source, token_rows()))


def test_int8_static__an_activation_that_stands_for_infinity__stays_in_float(
    tmp_path: Path,
) -> None:
    weight = np.random.default_rng(7).normal(size=(16, 16)).astype(np.float32)
    arrays = {"w": weight, "low": np.array(-3e38, np.float32), "zero": np.zeros(1, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Greater", ["m", "zero"], ["positive"], name="compare"),
        helper.make_node("Where", ["positive", "m", "low"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["y"], name="softmax"),
    ]
    shapes: tuple[list[Any], list[Any]] = (["batch", "tokens", 16], ["batch", "tokens", 16])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    directory = out(tmp_path)
    Int8Static().build(source, directory, workbench(source, token_rows(), limit=0.1))
    assert reads(directory, "softmax") == ["masked"]
    assert distance(source, directory, token_rows()) < 0.1


def test_int8_static__a_mask_and_an_outlier__percentiles_skip_the_mask(tmp_path: Path) -> None:
    """The library cannot make a histogram of a range that spans all of float32."""
    random = np.random.default_rng(7)
    arrays = {
        "w": random.normal(size=(16, 16)).astype(np.float32),
        "low": np.array(-3.4e38, np.float32),
        "zero": np.zeros(1, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Greater", ["m", "zero"], ["positive"], name="compare"),
        helper.make_node("Where", ["positive", "m", "low"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["y"], name="softmax"),
    ]
    shapes: tuple[list[Any], list[Any]] = (["batch", "tokens", 16], ["batch", "tokens", 16])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    rows, judged = token_rows(300), token_rows(300)
    rows.inputs["x"][0, 0, 0] = 3000.0
    bench = workbench(source, judged, limit=0.1)
    bench = Workbench(rows, bench.quality, bench.store, bench.step)
    details = Int8Static().build(source, out(tmp_path), bench)
    assert details.settings["calibrator"] == "percentile"
    assert distance(source, tmp_path / "out", judged) < 0.1


def test_int8_static__a_decomposed_normalization__stays_in_float(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    arrays = {
        "w1": random.normal(0, 0.25, (16, 16)).astype(np.float32),
        "w2": random.normal(0, 0.25, (16, 16)).astype(np.float32),
        "tiny": np.array(1e-6, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Add", ["a", "x"], ["b"], name="residual"),
        helper.make_node("Mul", ["b", "b"], ["squares"], name="square"),
        helper.make_node("Mul", ["squares", "squares"], ["fourth"], name="fourth_power"),
        helper.make_node("GlobalLpPool", ["fourth"], ["size"], p=1, name="sum"),
        helper.make_node("Add", ["size", "tiny"], ["c"], name="shift"),
        helper.make_node("Sqrt", ["c"], ["d"], name="root"),
        helper.make_node("Div", ["b", "d"], ["e"], name="divide"),
        helper.make_node("MatMul", ["e", "w2"], ["y"], name="second"),
    ]
    shapes: tuple[list[Any], list[Any]] = (["batch", "tokens", 16], ["batch", "tokens", 16])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    directory = out(tmp_path)
    details = Int8Static().build(source, directory, workbench(source, token_rows()))
    assert details.settings["layers left in float"] == "0"
    assert reads(directory, "square") == ["b", "b"]
    assert reads(directory, "divide") == ["b", "d"]
    assert reads(directory, "second")[0].endswith("DequantizeLinear_Output")


def test_int8__a_killed_search__resumes_with_its_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = product_net(tmp_path / "net", hard=True)
    rows = token_rows()
    opened, written = open_session, []

    def counted(model: Path) -> Any:
        written.append(model)
        if len(written) == 4:  # the reference, then three layers
            raise KeyboardInterrupt
        return opened(model)

    monkeypatch.setattr(search, "open_session", counted)
    with pytest.raises(KeyboardInterrupt):
        Int8Trt().build(source, out(tmp_path, "killed"), workbench(source, rows))
    store = Shelf()
    details = Int8Trt().build(source, out(tmp_path), workbench(source, rows, store=store))
    assert store.made == ["layer cost", "layer cost"]
    again = Int8Trt().build(source, out(tmp_path, "again"), workbench(source, rows))
    assert again == details


def late_branch(path: Path) -> Path:
    """A net whose branches read the last of three products, and whose condition reads `x`."""

    def branch(name: str) -> Any:
        made = f"{name}_y"
        nodes = [
            helper.make_node("MatMul", ["p", "w"], [f"{name}_m"]),
            helper.make_node(name, [f"{name}_m"], [made]),
        ]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(made, onnx.TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w"], ["p"], name="two"),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0, name="top"),
        helper.make_node("Greater", ["top", "one"], ["large"], name="compare"),
        helper.make_node(
            *("If", ["large"], ["y"]),
            name="if",
            then_branch=branch("Relu"),
            else_branch=branch("Tanh"),
        ),
    ]
    weight = np.random.default_rng(5).normal(0, 0.25, (16, 16)).astype(np.float32)
    arrays = {"w": weight, "one": np.array(1, np.float32)}
    return save_net(path, nodes, arrays, (["n", "tokens", 16], ["n", "tokens", 16]))


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_int8__a_branch_reads_a_late_value__is_behind_what_makes_it(
    tmp_path: Path, recipe: Recipe
) -> None:
    """The library sorts nodes without the values that their branches read."""
    source, directory = late_branch(tmp_path / "net"), out(tmp_path)
    recipe.build(source, directory, workbench(source, token_rows()))
    assert "If" in operators(directory)
    assert distance(source, directory, token_rows()) < 0.1


def test_calibration__later_values_a_billion_times_larger__need_no_larger_histogram(
    tmp_path: Path,
) -> None:
    """The library would make a histogram with 128 billion bins of them."""
    source = single_net(tmp_path / "net")
    rows, judged = token_rows(300), token_rows(300)
    rows.inputs["x"][:8] *= 1e-9
    rows.inputs["x"][8, 0, 0] = 3000.0
    bench = workbench(source, judged, limit=0.05)
    details = Int8Static().build(
        source, out(tmp_path), Workbench(rows, bench.quality, bench.store, bench.step)
    )
    assert details.settings["calibrator"] == "percentile"


def test_calibration__an_outlier_spoils_minmax__percentiles_are_taken(tmp_path: Path) -> None:
    source = single_net(tmp_path / "net")
    judged, rows = token_rows(300), token_rows(300)
    # One value of 28 800 far outside: MinMax gives the range to it.
    rows.inputs["x"][0, 0, 0] = 3000.0
    bench = workbench(source, judged, limit=0.05)
    bench = Workbench(rows, bench.quality, bench.store, bench.step)
    details = Int8Trt().build(source, out(tmp_path), bench)
    assert details.settings["calibrator"] == "percentile"
    assert distance(source, tmp_path / "out", judged) < 0.05


def test_calibration__rows__may_be_divided_in_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, found = conv_net(tmp_path / "net", hard=False), []
    for batch in (8, 40):
        monkeypatch.setattr("mlctl.optimize.recipes.quantize.methods.BATCH", batch)
        directory = out(tmp_path, str(batch))
        Int8Static().build(source, directory, workbench(source, image_rows()))
        found.append(content(directory))
    assert found[0] == found[1]


def test_int8__external_weights__give_the_same_graph(tmp_path: Path) -> None:
    found = []
    for external in (False, True):
        root = tmp_path / f"external-{external}"
        source, directory = conv_net(root / "net", hard=True, external=external), out(root)
        assert (source.parent / "model.onnx.data").is_file() is external
        Int8Trt().build(source, directory, workbench(source, image_rows()))
        found.append(content(directory))
        assert not list(source.parent.glob("*inferred*"))
    assert found[0] == found[1]


def test_int8__a_recurrent_net__is_quantized(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    arrays = {
        "w": random.normal(0, 0.3, (1, 32, 16)).astype(np.float32),
        "r": random.normal(0, 0.3, (1, 32, 8)).astype(np.float32),
    }
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=8)]
    shapes: tuple[list[Any], list[Any]] = (["time", "batch", 16], ["time", 1, "batch", 8])
    source = save_net(tmp_path / "net", nodes, arrays, shapes)
    directory = out(tmp_path)
    rows = Rows({"x": random.normal(size=(8, 4, 16)).astype(np.float32)}, None)
    details = Int8Dynamic().build(source, directory, workbench(source, rows))
    assert details.settings["layers quantized"] == "1"
    model = onnx.load(str(directory / "model.onnx"))
    assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLSTM"]


SCRIPT = """
import sys
from pathlib import Path
from mlctl.optimize.recipes.quantized import Int4, Int8Dynamic, Int8Static, Int8Trt
from tests.optimize.recipes.quantize.nets import conv_net, image_rows, product_net, token_rows
from tests.optimize.recipes.quantize.nets import workbench
root = Path(sys.argv[1])
conv, products = conv_net(root / "conv", hard=True), product_net(root / "products", hard=True)
for recipe, source, rows in (
    (Int8Static(), conv, image_rows()),
    (Int8Trt(), conv, image_rows()),
    (Int8Dynamic(), products, token_rows()),
    (Int4(), products, token_rows()),
):
    (root / recipe.name).mkdir()
    recipe.build(source, root / recipe.name, workbench(source, rows))
"""


@pytest.mark.slow
def test_quantized__another_process__writes_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for seed in ("1", "2"):
        root = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed, HOME_VARIABLE: str(root / "home")}
        subprocess.run([sys.executable, "-c", SCRIPT, str(root)], env=environment, check=True)
        names = ("int8-static", "int8-dynamic", "int8-trt", "int4")
        digests.append([sha256_file(root / name / "model.onnx") for name in names])
    assert digests[0] == digests[1]
