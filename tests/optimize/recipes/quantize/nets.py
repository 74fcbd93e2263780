"""Small ONNX nets, easy to quantize but for one layer, and a bench to quantize them on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlctl.core.entries import Key
from mlctl.optimize.cache import fetch_or_build
from mlctl.optimize.data import Rows
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.recipes.base import Quality, Workbench
from mlctl.services.model.session import open_session

OUTLIER = 500.0


def save_net(
    path: Path,
    nodes: list[Any],
    weights: dict[str, np.ndarray],
    shapes: tuple[list[Any], list[Any]],
    *,
    external: bool = False,
) -> Path:
    """Write a net from `x` to `y`, of these shapes, as model.onnx into the directory `path`."""
    path.mkdir(parents=True, exist_ok=True)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "net", [x], [y], tensors),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(
        model,
        str(path / "model.onnx"),
        save_as_external_data=external,
        location="model.onnx.data",
        size_threshold=0,
    )
    return path / "model.onnx"


def conv_net(path: Path, *, hard: bool, external: bool = False) -> Path:
    """Three convolutions and a head over [rows, 3, 8, 8].

    If `hard`, the channel between the second and the third one that is made 500 times
    larger spoils the scale that all channels share.
    """
    random = np.random.default_rng(3)
    weights = {
        "w1": random.normal(0, 0.3, (8, 3, 3, 3)),
        "w2": random.normal(0, 0.2, (8, 8, 3, 3)),
        "w3": random.normal(0, 0.2, (8, 8, 3, 3)),
        "b": random.normal(0, 0.1, (8,)),
        "w4": random.normal(0, 0.5, (8, 4)),
    }
    if hard:
        weights["w2"][2] *= OUTLIER
        weights["w3"][:, 2] /= OUTLIER

    def conv(inputs: list[str], made: str, name: str) -> Any:
        return helper.make_node("Conv", inputs, [made], name=name, pads=[1, 1, 1, 1])

    nodes = [
        conv(["x", "w1", "b"], "a", "first"),
        helper.make_node("Relu", ["a"], ["b1"], name="relu"),
        conv(["b1", "w2"], "c", "second"),
        helper.make_node("Relu", ["c"], ["d"], name="relu2"),
        conv(["d", "w3"], "e", "third"),
        helper.make_node("Add", ["e", "b1"], ["f"], name="residual"),
        helper.make_node("GlobalAveragePool", ["f"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["h"], name="flat"),
        helper.make_node("Gemm", ["h", "w4"], ["y"], name="head"),
    ]
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return save_net(path, nodes, arrays, (["batch", 3, 8, 8], ["batch", 4]), external=external)


def product_net(path: Path, *, hard: bool) -> Path:
    """Four matrix products over [rows, tokens, 16]; the third one is hard, as in `conv_net`."""
    random = np.random.default_rng(4)
    sizes = (16, 32, 32, 32, 16)
    weights = {
        f"w{number}": random.normal(0, rows**-0.5, (rows, columns))
        for number, (rows, columns) in enumerate(pairwise(sizes), 1)
    }
    if hard:
        weights["w2"][:, 5] *= OUTLIER
        weights["w3"][5] /= OUTLIER
    names = ("first", "second", "third", "fourth")
    nodes, given = [], "x"
    for number, name in enumerate(names, 1):
        made = "y" if name == "fourth" else f"p{number}"
        nodes.append(helper.make_node("MatMul", [given, f"w{number}"], [made], name=name))
        given = made
        if name != "fourth":
            nodes.append(helper.make_node("Relu", [made], [f"r{number}"], name=f"relu{number}"))
            given = f"r{number}"
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return save_net(path, nodes, arrays, (["batch", "tokens", 16], ["batch", "tokens", 16]))


def single_net(path: Path) -> Path:
    """One matrix product over [rows, tokens, 16]."""
    weight = np.random.default_rng(7).normal(size=(16, 8)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="only")]
    return save_net(path, nodes, {"w": weight}, (["batch", "tokens", 16], ["batch", "tokens", 8]))


def image_rows(count: int = 40) -> Rows:
    values = np.random.default_rng(5).normal(size=(count, 3, 8, 8))
    return Rows({"x": values.astype(np.float32)}, None)


def token_rows(count: int = 40) -> Rows:
    values = np.random.default_rng(6).normal(size=(count, 6, 16))
    return Rows({"x": values.astype(np.float32)}, None)


def distance(source: Path, directory: Path, rows: Rows) -> float:
    """The relative L2 of the graph in `directory` from the graph `source`."""
    want, have = (
        open_session(path).run(rows.inputs) for path in (source, directory / "model.onnx")
    )
    return compare(want, have).relative_l2


class Shelf:
    """A store in the cache of the home; remembers the kinds of what it had to make."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, key: Key, fill: Callable[[Path], None]) -> Path:
        entry = fetch_or_build(key, fill)
        if not entry.reused:
            self.made.append(str(key["kind"]))
        return entry.root


def workbench(
    source: Path,
    rows: Rows,
    *,
    limit: float = 0.05,
    store: Shelf | None = None,
    steps: list[tuple[str, int, int]] | None = None,
) -> Workbench:
    """A bench on which a distance up to `limit` is good; `steps` gets the progress."""

    def quality(directory: Path) -> Quality:
        far = distance(source, directory, rows)
        return Quality(far, far <= limit, f"relative L2 {far:.3g}")

    def step(what: str, done: int, total: int) -> None:
        if steps is not None:
            steps.append((what, done, total))

    return Workbench(rows, quality, store or Shelf(), step)
