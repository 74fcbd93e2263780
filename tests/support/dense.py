"""A registered ONNX model that INT8 hurts: dense layers, one of them with outlying weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.registry.catalog import ModelFormat, SourceModel, artifacts_sha256

FEATURES = 16
LAYERS = 4


def dense_source(root: Path) -> SourceModel:
    """Version 1 of the model `dense`: float32 [-1, 16] to [-1, 16] through four layers."""
    root.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(), str(root / "model.onnx"))
    sides = (TensorSpec(name=name, dtype=Datatype.FP32, shape=(DYNAMIC, FEATURES)) for name in "xy")
    x, y = sides
    return SourceModel(
        name="dense",
        version="1",
        uri="models:/dense/1",
        run_id="run",
        format=ModelFormat.ONNX,
        signature=Signature(inputs=(x,), outputs=(y,)),
        artifacts=root,
        model_path=root / "model.onnx",
        sha256=artifacts_sha256(root),
    )


def _model() -> onnx.ModelProto:
    random = np.random.default_rng(5)
    nodes, weights, value = [], [], "x"
    for layer in range(LAYERS):
        weight = random.standard_normal((FEATURES, FEATURES)).astype(np.float32) / 4
        if layer == 1:
            weight[:, 0] *= 200.0
        bias = random.standard_normal(FEATURES).astype(np.float32)
        last = layer == LAYERS - 1
        product = "y" if last else f"sum{layer}"
        weights += [
            numpy_helper.from_array(weight, f"w{layer}"),
            numpy_helper.from_array(bias, f"b{layer}"),
        ]
        nodes.append(
            helper.make_node(
                "Gemm", [value, f"w{layer}", f"b{layer}"], [product], name=f"dense{layer}"
            )
        )
        value = product
        if not last:
            nodes.append(helper.make_node("Tanh", [product], [f"act{layer}"], name=f"tanh{layer}"))
            value = f"act{layer}"
    shape: list[str | int | None] = ["rows", FEATURES]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model
