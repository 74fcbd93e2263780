"""The INT8 recipes from graph to files: forms, the search, resuming, determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bundle.files import sha256_file
from bundle.home import HOME_VARIABLE
from optimize.recipes.base import Calibrator, Recipe, Workbench
from optimize.recipes.int8_cpu import Int8Cpu
from optimize.recipes.int8_trt import Int8Trt
from optimize.recipes.quantize import build as building
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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def out(tmp_path: Path, name: str = "out") -> Path:
    directory = tmp_path / name
    directory.mkdir()
    return directory


def operators(directory: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(directory / "model.onnx")).graph.node}


def reads(directory: Path, name: str) -> list[str]:
    graph = onnx.load(str(directory / "model.onnx")).graph
    return list(next(node for node in graph.node if node.name == name).input)


def content(directory: Path) -> tuple[list[str], dict[str, list[float]]]:
    """Nodes and constants."""
    graph = onnx.load(str(directory / "model.onnx")).graph
    constants = {each.name: onnx.numpy_helper.to_array(each).tolist() for each in graph.initializer}
    return [str(node) for node in graph.node], constants


@pytest.mark.parametrize("recipe", [Int8Cpu(), Int8Trt()], ids=lambda recipe: recipe.name)
def test_int8__an_easy_conv_net__is_quantized_whole(tmp_path: Path, recipe: Recipe) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    details = recipe.build(source, directory, workbench(source, image_rows()))
    assert details.layers == ()
    assert details.settings == {
        "form": f"static {'U8S8' if recipe.name == 'int8-cpu' else 'S8S8'} per channel",
        "calibrator": "minmax",
        "calibration rows": "40",
        "layers quantized": "6" if recipe.name == "int8-cpu" else "4",
        "layers left in float": "0",
    }
    assert distance(source, directory, image_rows()) < 0.05
    assert [path.name for path in directory.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("recipe", [Int8Cpu(), Int8Trt()], ids=lambda recipe: recipe.name)
def test_int8__the_layer_that_spoils_a_conv_net__stays_in_float(
    tmp_path: Path, recipe: Recipe
) -> None:
    source, directory = conv_net(tmp_path / "net", hard=True), out(tmp_path)
    steps: list[tuple[str, int, int]] = []
    bench = workbench(source, image_rows(), steps=steps)
    details = recipe.build(source, directory, bench)
    assert [each.layer for each in details.layers if each.kept_in_float] == ["third"]
    assert details.layers[0].layer == "third"
    assert details.layers[0].operator == "Conv"
    assert details.layers[0].distance > 2 * details.layers[1].distance
    assert details.settings["layers left in float"] == "1"
    assert reads(directory, "third") == ["d", "w3"]
    assert distance(source, directory, image_rows()) < 0.05
    searched = [step for step in steps if step[0] == "sensitivity"]
    assert [done for _, done, _ in searched] == list(range(1, searched[0][2] + 1))


@pytest.mark.parametrize("recipe", [Int8Cpu(), Int8Trt()], ids=lambda recipe: recipe.name)
def test_int8__the_product_that_spoils_a_transformer__stays_in_float(
    tmp_path: Path, recipe: Recipe
) -> None:
    source, directory = product_net(tmp_path / "net", hard=True), out(tmp_path)
    details = recipe.build(source, directory, workbench(source, token_rows()))
    assert [each.layer for each in details.layers if each.kept_in_float] == ["third"]
    assert reads(directory, "third") == ["r2", "w3"]
    assert distance(source, directory, token_rows()) < 0.05
    dynamic = isinstance(recipe, Int8Cpu)
    assert ("DynamicQuantizeLinear" in operators(directory)) is dynamic


def test_int8_trt__form__is_symmetric_with_float_biases(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    Int8Trt().build(source, directory, workbench(source, image_rows()))
    graph = onnx.load(str(directory / "model.onnx")).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    pairs = [node for node in graph.node if node.op_type.endswith("quantizeLinear")]
    pairs += [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert pairs
    for node in pairs:
        zero = constants[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()
    assert reads(directory, "first")[2] == "b"
    assert constants["b"].dtype == np.float32
    # A residual's Add is none of TensorRT's quantized layers here.
    assert reads(directory, "residual") == ["e", "b1"]


def test_int8_cpu__form__has_zero_points_and_quantizes_the_residual(tmp_path: Path) -> None:
    source, directory = conv_net(tmp_path / "net", hard=False), out(tmp_path)
    Int8Cpu().build(source, directory, workbench(source, image_rows()))
    graph = onnx.load(str(directory / "model.onnx")).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert constants["x_zero_point"].dtype == np.uint8
    assert constants["x_zero_point"] > 0
    assert constants["b1_zero_point"] == 0  # after a ReLU all 8 bits are for values above 0
    assert reads(directory, "residual") == ["e_dequantized", "b1_dequantized"]
    assert {name for name in constants if name.startswith("w")} == {
        f"w{number}_{part}"
        for number in range(1, 5)
        for part in ("quantized", "scale", "zero_point")
    }


def test_int8_cpu__a_transformer_behind_a_convolution__is_dynamic(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    shapes = {"w0": (16, 3, 4, 4), "w1": (16, 16), "w2": (16, 16)}
    weights = {
        name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights["flat"] = np.array([0, 16, 4], np.int64)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["p"], name="patches", strides=[4, 4]),
        helper.make_node("Reshape", ["p", "flat"], ["f"], name="flatten"),
        helper.make_node("Transpose", ["f"], ["t"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w1"], ["a"], name="one"),
        helper.make_node("MatMul", ["a", "w2"], ["y"], name="two"),
    ]
    source = save_net(tmp_path / "net", nodes, weights, (["batch", 3, 8, 8], ["batch", 4, 16]))
    directory = out(tmp_path)
    Int8Cpu().build(source, directory, workbench(source, image_rows()))
    assert {"Conv", "DynamicQuantizeLinear", "MatMulInteger"} <= operators(directory)
    assert "QuantizeLinear" not in operators(directory)


def test_int8__impossible_goals__say_so(tmp_path: Path) -> None:
    source = product_net(tmp_path / "net", hard=False)
    bench = workbench(source, token_rows(), limit=0.0)
    details = Int8Cpu().build(source, out(tmp_path), bench)
    assert "no layer can be quantized within the goals: relative L2" in details.settings["search"]
    # What all of them cost is there to be judged and shown.
    assert details.settings["layers quantized"] == "4"
    assert not any(layer.kept_in_float for layer in details.layers)
    assert distance(source, tmp_path / "out", token_rows()) > 0


@pytest.mark.parametrize("recipe", [Int8Cpu(), Int8Trt()], ids=lambda recipe: recipe.name)
def test_int8__a_net_without_weights__is_rejected(tmp_path: Path, recipe: Recipe) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    source = save_net(tmp_path / "net", nodes, {}, (["batch", 16], ["batch", 16]))
    with pytest.raises(ValueError, match="no convolution or matrix product with weights"):
        recipe.build(source, out(tmp_path), workbench(source, token_rows()))


def test_int8__a_killed_search__resumes_with_its_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = product_net(tmp_path / "net", hard=True)
    rows = token_rows()
    cost, asked = building._LayerJudge.cost, []

    def counted(judge: building._LayerJudge, name: str) -> float:
        asked.append(name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return cost(judge, name)

    monkeypatch.setattr(building._LayerJudge, "cost", counted)
    with pytest.raises(KeyboardInterrupt):
        Int8Trt().build(source, out(tmp_path, "killed"), workbench(source, rows))
    store = Shelf()
    details = Int8Trt().build(source, out(tmp_path), workbench(source, rows, store=store))
    assert asked == ["first", "second", "third", "third", "fourth"]
    assert store.made == ["layer cost", "layer cost"]
    fresh = Int8Trt().build(source, out(tmp_path, "again"), workbench(source, rows))
    assert fresh == details


def test_calibrator__auto__takes_the_nearest(tmp_path: Path) -> None:
    source = single_net(tmp_path / "net")
    judged, rows = token_rows(300), token_rows(300)
    # One value of 28 800 far outside: MinMax gives the range to it.
    rows.inputs["x"][0, 0, 0] = 3000.0

    def built(calibrator: Calibrator) -> tuple[str, float]:
        bench = workbench(source, judged, limit=1.0)
        bench = Workbench(rows, bench.quality, bench.store, bench.step, calibrator)
        directory = out(tmp_path, calibrator.value)
        details = Int8Trt().build(source, directory, bench)
        return details.settings["calibrator"], distance(source, directory, judged)

    found = {each: built(each) for each in Calibrator}
    single = {name: far for each, (name, far) in found.items() if each is not Calibrator.AUTO}
    assert found[Calibrator.AUTO][1] == min(single.values())
    assert found[Calibrator.AUTO][0] != "minmax"
    assert single["minmax"] > 2 * min(single.values())


def test_calibrator__minmax_is_near_enough__auto_stops(tmp_path: Path) -> None:
    source, store = single_net(tmp_path / "net"), Shelf()
    rows = token_rows()
    rows.inputs["x"].clip(-1.0, 1.0, out=rows.inputs["x"])
    bench = workbench(source, rows, limit=0.05, store=store, calibrator=Calibrator.AUTO)
    details = Int8Trt().build(source, out(tmp_path), bench)
    assert details.settings["calibrator"] == "minmax"
    assert "calibration histograms" not in store.made


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


SCRIPT = """
import sys
from pathlib import Path
from optimize.recipes.int8_cpu import Int8Cpu
from optimize.recipes.int8_trt import Int8Trt
from tests.optimize.recipes.quantize.nets import conv_net, image_rows, workbench
root = Path(sys.argv[1])
source = conv_net(root / "net", hard=True)
for recipe in (Int8Cpu(), Int8Trt()):
    (root / recipe.name).mkdir()
    recipe.build(source, root / recipe.name, workbench(source, image_rows()))
"""


@pytest.mark.slow
def test_int8__another_process__writes_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for seed in ("1", "2"):
        root = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed, HOME_VARIABLE: str(root / "home")}
        subprocess.run([sys.executable, "-c", SCRIPT, str(root)], env=environment, check=True)
        digests.append(
            [sha256_file(root / name / "model.onnx") for name in ("int8-cpu", "int8-trt")]
        )
    assert digests[0] == digests[1]
