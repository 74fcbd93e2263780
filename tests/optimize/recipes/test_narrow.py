"""Rewriting to 16 bits: overflow, other types, branches and loops, names and both forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as arrays

from mlctl.optimize.recipes.base import NotApplicableError
from mlctl.optimize.recipes.fp16 import Fp16
from mlctl.optimize.recipes.narrow import narrow
from tests.optimize.recipes.models import (
    FEATURES,
    OPSET,
    answers,
    bench,
    floats,
    images,
    network,
    operators,
    random,
    write,
)

X = {"x": random(16, FEATURES)}


def fp16(source: Path, inputs: dict[str, np.ndarray]) -> tuple[Path, str]:
    """The directory with the variant, and what its details say was kept in fp32."""
    out = source.parent / "out"
    out.mkdir()
    details = Fp16().build(source, out, bench(source, inputs))
    return out, details.settings["kept in fp32"]


def stored(directory: Path, name: str = "model.onnx") -> dict[str, int]:
    graph = onnx.load(str(directory / name)).graph
    return {tensor.name: tensor.data_type for tensor in graph.initializer}


def error(source: Path, out: Path, inputs: dict[str, np.ndarray]) -> float:
    """Relative L2 of the variant's first output against the source's."""
    (want, *_), (have, *_) = (
        list(answers(directory, inputs).values()) for directory in (source.parent, out)
    )
    assert want.dtype == have.dtype
    return float(np.linalg.norm(want - have) / np.linalg.norm(want))


def test_fp16__a_net__halves_the_file_and_keeps_the_interface(tmp_path: Path) -> None:
    source = network(tmp_path)
    out, kept = fp16(source, images())
    assert kept == "none of 6 operators"
    assert 0 < error(source, out, images()) < 2e-3
    assert (out / "model.onnx").stat().st_size < 0.6 * source.stat().st_size
    assert set(stored(out).values()) == {TensorProto.FLOAT16}
    before, after = (onnx.load(str(path)).graph for path in (source, out / "model.onnx"))
    assert before.input == after.input
    assert before.output == after.output
    assert sorted(path.name for path in out.iterdir()) == ["model.onnx"]


def test_fp16__overflowing_operators__stay_in_fp32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["grown"], name="grow"),
        helper.make_node("Abs", ["grown"], ["positive"], name="positive"),
        helper.make_node("Sqrt", ["positive"], ["root"], name="root"),
        helper.make_node("MatMul", ["root", "w"], ["y"], name="product"),
    ]
    product: np.ndarray = random(FEATURES, FEATURES) / 8
    source = write(tmp_path, nodes, {"large": np.asarray(1e6, np.float32), "w": product})
    out, kept = fp16(source, X)
    assert kept == "3 of 4 operators: grow, positive, root"
    assert stored(out)["large"] == TensorProto.FLOAT
    assert error(source, out, X) < 2e-3


def test_fp16__a_value_large_on_the_data__is_observed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], name="square"),
        helper.make_node("Tanh", ["square"], ["squashed"], name="squash"),
        helper.make_node("Neg", ["squashed"], ["y"], name="turn"),
    ]
    small, large = (write(tmp_path / name, nodes, {}) for name in ("small", "large"))
    assert fp16(small, X)[1] == "none of 3 operators"
    assert fp16(large, {"x": X["x"] * 200})[1] == "2 of 3 operators: square, squash"


def test_fp16__masks_and_small_constants__survive(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["mask"]),
        helper.make_node("Where", ["mask", "x", "never"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("Add", ["shares", "tiny"], ["safe"]),
        helper.make_node("Log", ["safe"], ["y"]),
    ]
    constants = {"zero": 0.0, "never": float(np.finfo(np.float32).min), "tiny": 1e-12}
    source = write(
        tmp_path, nodes, {name: np.asarray(value, np.float32) for name, value in constants.items()}
    )
    out, kept = fp16(source, X)
    assert kept == "none of 5 operators"
    # log(1e-12) = -27.6 becomes that of fp16's smallest number, -16.6: finite in both.
    assert np.isfinite(answers(out, X)["y"]).all()


def test_narrow__a_weight_of_both_kinds__is_stored_in_both_types(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "huge"], ["a"], name="wide"),
        helper.make_node("Mul", ["a", "w"], ["b"], name="wide_too"),
        helper.make_node("Div", ["b", "huge"], ["c"], name="back"),
        helper.make_node("Mul", ["c", "w"], ["y"], name="narrow"),
    ]
    weights = {"huge": np.asarray(1e5, np.float32), "w": random(FEATURES)}
    source = write(tmp_path, nodes, weights)
    out, kept = fp16(source, X)
    assert kept == "3 of 4 operators: wide, wide_too, back"
    assert stored(out) == {"huge": TensorProto.FLOAT, "w": TensorProto.FLOAT, "w_fp16": 10}
    assert error(source, out, X) < 2e-3


def test_narrow__operators_without_a_half_form__stay(tmp_path: Path) -> None:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", 5])
    mask = helper.make_tensor_value_info("mask", TensorProto.BOOL, ["rows", 5])
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node("Cast", ["mask"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["number", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=0),
        helper.make_node("Range", ["start", "stop", "step"], ["ramp"], name="ramp"),
        helper.make_node("Add", ["total", "ramp"], ["y"]),
        helper.make_node("ReduceSum", ["number", "axis"], ["count"], keepdims=0),
    ]
    weights = {
        "table": random(11, 8),
        "last": np.array([-1]),
        "axis": np.array([1]),
        "start": np.asarray(0.0, np.float32),
        "stop": np.asarray(8.0, np.float32),
        "step": np.asarray(1.0, np.float32),
    }
    outputs = [floats("y", 8), floats("count")]
    source = write(tmp_path, nodes, weights, inputs=[ids, mask], outputs=outputs)
    feed = {"ids": np.arange(80).reshape(16, 5) % 11, "mask": np.arange(80).reshape(16, 5) % 3 > 0}
    out, kept = fp16(source, feed)
    assert kept == "1 of 8 operators: ramp"
    assert error(source, out, feed) < 2e-3
    np.testing.assert_array_equal(answers(out, feed)["count"], feed["mask"].sum(axis=1))


@pytest.mark.parametrize(("reduction", "kept"), [("add", "1 of 2"), ("none", "none of 2")])
def test_fp16__a_scatter_that_reduces__stays_in_fp32_and_runs(
    tmp_path: Path, reduction: str, kept: str
) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["seen"]),
        helper.make_node(
            "ScatterElements", ["seen", "where", "more"], ["y"], name="scatter", reduction=reduction
        ),
    ]
    weights = {"where": np.zeros((1, FEATURES), np.int64), "more": random(1, FEATURES)}
    source = write(tmp_path, nodes, weights)
    out, said = fp16(source, X)
    assert said.startswith(f"{kept} operators")
    assert error(source, out, X) < 2e-3


def test_narrow__constants_of_every_kind__are_converted(tmp_path: Path) -> None:
    tensor = arrays.from_array(random(FEATURES))
    filler = arrays.from_array(np.array([2.5], np.float32))
    nodes = [
        helper.make_node("Constant", [], ["tensor"], value=tensor),
        helper.make_node("Constant", [], ["number"], value_float=0.5),
        helper.make_node("Constant", [], ["numbers"], value_floats=[0.25]),
        helper.make_node("Constant", [], ["shape"], value_ints=[FEATURES]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ConstantOfShape", ["shape"], ["filled"], value=filler),
        helper.make_node(
            "Sum", ["x", "tensor", "number", "numbers", "zeros", "filled"], ["y"], name="sum"
        ),
    ]
    source = write(tmp_path, nodes, {})
    out, kept = fp16(source, X)
    assert kept == "none of 3 operators"
    assert error(source, out, X) < 2e-3
    assert "Constant" not in operators(out)


def test_narrow__a_fill_value_beyond_the_range__stays_in_fp32(tmp_path: Path) -> None:
    filler = arrays.from_array(np.array([1e6], np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["filled"], name="fill", value=filler),
        helper.make_node("Div", ["x", "filled"], ["small"], name="divide"),
        helper.make_node("Neg", ["small"], ["y"], name="turn"),
    ]
    source = write(tmp_path, nodes, {"shape": np.array([FEATURES])})
    assert fp16(source, X)[1] == "2 of 3 operators: fill, divide"


def test_narrow__only_values_beyond_the_range__says_so(tmp_path: Path) -> None:
    source = write(tmp_path, [helper.make_node("Neg", ["x"], ["y"], name="turn")], {})
    with pytest.raises(NotApplicableError, match="its values are near 65504, where fp16 ends"):
        narrow(source, frozenset(["y"]))


def test_narrow__local_functions__are_inlined(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    body = [
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node("Tanh", ["product"], ["c"]),
    ]
    function = helper.make_function("local", "Squash", ["a", "b"], ["c"], body, opsets[:1])
    graph = helper.make_graph(
        [helper.make_node("Squash", ["x", "w"], ["y"], domain="local")],
        "g",
        [floats("x", FEATURES)],
        [floats("y", FEATURES)],
        [arrays.from_array(random(FEATURES), "w")],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    out, kept = fp16(tmp_path / "model.onnx", X)
    assert kept == "none of 2 operators"
    assert error(tmp_path / "model.onnx", out, X) < 3e-3


def branch(nodes: Sequence[Any], weights: dict[str, np.ndarray], output: str) -> Any:
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    tensors = [arrays.from_array(array, name) for name, array in weights.items()]
    return helper.make_graph(list(nodes), "branch", [], [made], tensors)


def with_branches(path: Path) -> Path:
    """Branches with weights of the same name, that read what is made outside."""
    one = branch([helper.make_node("MatMul", ["h", "w"], ["z"])], {"w": random(64, 64) / 8}, "z")
    other = branch(
        [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "h"], ["z"])],
        {"w": random(64, seed=2)},
        "z",
    )
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["z"], then_branch=one, else_branch=other),
        helper.make_node("Add", ["z", "h"], ["y"]),
    ]
    return write(path, nodes, {"zero": np.asarray(0, np.float32)})


def with_loop(path: Path) -> Path:
    """y = x after three times x := tanh(x W), W from outside."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            floats("state", FEATURES),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), floats("next", FEATURES)],
    )
    nodes = [helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)]
    weights = {
        "times": np.asarray(3),
        "yes": np.asarray(1, bool),
        "w": random(FEATURES, FEATURES) / 8,
    }
    return write(path, nodes, weights)


@pytest.mark.parametrize("make", [with_branches, with_loop])
@pytest.mark.parametrize("sign", [1, -1])
def test_narrow__branches_and_loops__compute_in_16_bits(
    tmp_path: Path, make: Any, sign: int
) -> None:
    source = make(tmp_path)
    inputs = {"x": np.abs(X["x"]) * np.float32(sign)}
    out, kept = fp16(source, inputs)
    assert kept.startswith("none of")
    assert 0 < error(source, out, inputs) < 3e-3


def test_narrow__a_graph_without_floats__is_rejected(tmp_path: Path) -> None:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows"])
    made = helper.make_tensor_value_info("y", TensorProto.INT64, ["rows"])
    nodes = [helper.make_node("Add", ["ids", "ids"], ["y"])]
    source = write(tmp_path, nodes, {}, inputs=[ids], outputs=[made])
    with pytest.raises(NotApplicableError, match="no operator of the model can compute in fp16"):
        narrow(source)


def test_narrow__an_operator_of_unknown_type__is_rejected(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [floats("x", 4)], [floats("y", 4)])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="the type of the values of Gelu cannot be inferred"):
        narrow(tmp_path / "model.onnx")


def test_narrow__taken_names__are_not_reused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["x_fp16"]),
        helper.make_node("Add", ["x_fp16", "x"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    outputs = [floats("y", FEATURES), floats("z", FEATURES)]
    source = write(tmp_path, nodes, {"w": random(FEATURES)}, outputs=outputs)
    out, _ = fp16(source, X)
    assert error(source, out, X) < 2e-3
    assert operators(out).count("Cast") == 3
