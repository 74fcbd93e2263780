"""Small ONNX graphs with what recipes have to cope with, and a workbench for them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlctl.core.entries import Key
from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import Workbench
from mlctl.optimize.variants.goals import Goals
from mlctl.optimize.variants.judge import QualityMeter
from mlctl.services.model.session import open_session

OPSET = 20
FEATURES = 64
ROWS = 40

Inputs = Mapping[str, np.ndarray]


def write(
    path: Path,
    nodes: Sequence[Any],
    weights: Mapping[str, np.ndarray],
    *,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    external: bool = False,
) -> Path:
    """Save a graph from `x` to `y`, both fp32 [rows, FEATURES] unless told otherwise."""
    path.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        list(nodes),
        "graph",
        list(inputs) or [floats("x", FEATURES)],
        list(outputs) or [floats("y", FEATURES)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    onnx.checker.check_model(model, full_check=True)
    file = path / "model.onnx"
    onnx.save_model(
        model,
        str(file),
        save_as_external_data=external,
        location="model.onnx.data",
        size_threshold=0,
    )
    return file


def floats(name: str, *shape: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *shape])


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def network(path: Path, *, external: bool = False) -> Path:
    """A convolution, then two matrix products, from `x` [rows, 1, 8, 8] to `y` [rows, 4]."""
    nodes = [
        helper.make_node("Conv", ["x", "filter"], ["seen"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["seen"], ["active"], name="relu"),
        helper.make_node("Flatten", ["active"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "first"], ["hidden"], name="first_product"),
        helper.make_node("Tanh", ["hidden"], ["squashed"], name="tanh"),
        helper.make_node("Gemm", ["squashed", "second", "bias"], ["y"], name="head", transB=1),
    ]
    weights = {
        "filter": random(4, 1, 3, 3) / 3,
        "first": random(256, 32, seed=1) / 16,
        "second": random(4, 32, seed=2) / 6,
        "bias": random(4, seed=3),
    }
    shapes: dict[str, Any] = {"inputs": [floats("x", 1, 8, 8)], "outputs": [floats("y", 4)]}
    return write(path, nodes, weights, external=external, **shapes)


def images() -> dict[str, np.ndarray]:
    return {"x": random(ROWS, 1, 8, 8, seed=9)}


def answers(directory: Path, inputs: Inputs, name: str = "model.onnx") -> dict[str, np.ndarray]:
    """What the graph in `directory` gives; it must pass the full check."""
    onnx.checker.check_model(str(directory / name), full_check=True)
    return open_session(directory / name).run(inputs)


def operators(directory: Path, name: str = "model.onnx") -> list[str]:
    model = onnx.load(str(directory / name), load_external_data=False)
    return [node.op_type for node in model.graph.node]


def bench(source: Path, inputs: Inputs, goals: Goals | None = None) -> Workbench:
    """The real meter on `inputs`, a store that keeps nothing, and progress nobody sees."""
    rows = Rows(inputs, None)
    return Workbench(
        calibration=rows,
        quality=QualityMeter(source, rows, 32, None, goals or Goals()),
        store=_Store(source.parent),
        step=lambda what, done, total: None,  # noqa: ARG005
    )


class _Store:
    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, key: Key, build: Callable[[Path], None]) -> Path:
        del key
        directory = Path(tempfile.mkdtemp(dir=self._root))
        build(directory)
        return directory
