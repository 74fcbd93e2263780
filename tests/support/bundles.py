"""A real, tiny, sealed bundle: an ONNX model whose answers a test can compute by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    Batching,
    Evidence,
    InputConstraints,
    Manifest,
    SourceVersion,
    VariantInfo,
)
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.services.model.golden import save_golden

OPSET = 20
LOOKUP_ROWS = 10
TABLE = ("age", "income", "y")


def expected(x: np.ndarray, *, scale: float = 2.0, row_independent: bool = True) -> np.ndarray:
    """What the tiny model answers: `x * scale` plus a sum over each row (or over each column)."""
    total = x.sum(axis=1 if row_independent else 0, keepdims=True)
    answer: np.ndarray = (x * np.float32(scale) + total).astype(np.float32)
    return answer


def make_bundle(
    root: Path,
    *,
    name: str = "tiny",
    scale: float = 2.0,
    features: int = 4,
    row_independent: bool = True,
    accuracy: float | None = None,
) -> VerifiedBundle:
    """Write and seal a bundle at `root`: input `x` and output `y`, FP32 [-1, features].

    `accuracy` is its proved score on 1000 rows of the same data each time; None: no labels.
    """
    root.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(scale, features, row_independent), str(root / MODEL_NAME))
    x = np.arange(8 * features, dtype=np.float32).reshape(8, features) / np.float32(10)
    y = expected(x, scale=scale, row_independent=row_independent)
    save_golden(root / GOLDEN_NAME, {"x": x}, {"y": y})
    document = {
        "data": {"sha256": "d" * 64},
        "metric_code": None,
        "higher_is_better": None if accuracy is None else True,
        "variants": [{"recipe": "fp32"}],
    }
    (root / EVIDENCE_NAME).write_text(json.dumps(document))
    metric = None if accuracy is None else "accuracy"
    evidence = Evidence(
        rows=1000, metric=metric, score=accuracy, max_abs_error=1e-5, relative_l2=1e-6
    )
    return seal(root, _manifest(name, features, row_independent, evidence))


def make_lookup_bundle(
    root: Path, *, name: str = "lookup", constraints: InputConstraints | None = None
) -> VerifiedBundle:
    """A bundle that weighs rows of a table: `ids` and `weights` [-1, -1] of equal lengths to `y`.

    The table has LOOKUP_ROWS rows, 0 to LOOKUP_ROWS - 1; `y` is the weighted sum of the ids.
    """
    root.mkdir(parents=True, exist_ok=True)
    onnx.save(_lookup_model(), str(root / MODEL_NAME))
    ids = np.arange(24, dtype=np.int64).reshape(8, 3) % LOOKUP_ROWS
    weights = np.full((8, 3), 0.5, np.float32)
    y = (ids * weights).sum(axis=1, keepdims=True).astype(np.float32)
    save_golden(root / GOLDEN_NAME, {"ids": ids, "weights": weights}, {"y": y})
    (root / EVIDENCE_NAME).write_text(json.dumps({"variants": [{"recipe": "fp32"}]}))
    specs = {"ids": Datatype.INT64, "weights": Datatype.FP32}
    pair = (DYNAMIC, DYNAMIC)
    inputs = tuple(TensorSpec(name=each, dtype=kind, shape=pair) for each, kind in specs.items())
    outputs = (TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 1)),)
    evidence = Evidence(rows=1000, max_abs_error=1e-5, relative_l2=1e-6)
    manifest = _manifest(name, 4, row_independent=True, evidence=evidence)
    signature = Signature(inputs=inputs, outputs=outputs)
    update = {"signature": signature, "input_constraints": constraints}
    return seal(root, manifest.model_copy(update=update))


def make_table_bundle(
    root: Path, *, name: str = "table", constraints: InputConstraints | None = None
) -> VerifiedBundle:
    """A bundle of two columns FP64: `y` is 1000 * `age` + `income`, where -1 replaces NaN.

    Without other `constraints` both columns are nullable, and `income` is optional.
    """
    root.mkdir(parents=True, exist_ok=True)
    onnx.save(_table_model(), str(root / MODEL_NAME))
    age, income = np.arange(8.0), np.arange(8.0) / 8
    save_golden(root / GOLDEN_NAME, {"age": age, "income": income}, {"y": age * 1000 + income})
    (root / EVIDENCE_NAME).write_text(json.dumps({"variants": [{"recipe": "fp32"}]}))
    specs = [TensorSpec(name=each, dtype=Datatype.FP64, shape=(-1,)) for each in TABLE]
    evidence = Evidence(rows=1000, max_abs_error=1e-5, relative_l2=1e-6)
    manifest = _manifest(name, 4, row_independent=True, evidence=evidence)
    update = {
        "signature": Signature(inputs=tuple(specs[:2]), outputs=tuple(specs[2:])),
        "input_constraints": constraints
        or InputConstraints(nullable=("age", "income"), optional=("income",)),
    }
    return seal(root, manifest.model_copy(update=update))


def _table_model() -> onnx.ModelProto:
    nodes = []
    for column in TABLE[:2]:
        nodes += [
            helper.make_node("IsNaN", [column], [f"{column} is missing"]),
            helper.make_node("Where", [f"{column} is missing", "fill", column], [f"any {column}"]),
        ]
    nodes += [
        helper.make_node("Mul", ["any age", "thousand"], ["scaled"]),
        helper.make_node("Add", ["scaled", "any income"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(each, TensorProto.DOUBLE, ["rows"]) for each in TABLE]
    constants = [
        helper.make_tensor("fill", TensorProto.DOUBLE, [], [-1.0]),
        helper.make_tensor("thousand", TensorProto.DOUBLE, [], [1000.0]),
    ]
    graph = helper.make_graph(nodes, "table", values[:2], values[2:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    return model


def _lookup_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["found"]),
        helper.make_node("Mul", ["found", "weights"], ["weighed"]),
        helper.make_node("ReduceSum", ["weighed", "axis"], ["y"], keepdims=1),
    ]
    table = np.arange(LOOKUP_ROWS, dtype=np.float32)
    graph = helper.make_graph(
        nodes,
        "lookup",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "length"]),
            helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["rows", "length"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            helper.make_tensor("table", TensorProto.FLOAT, [LOOKUP_ROWS], table),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model


def _manifest(name: str, features: int, row_independent: bool, evidence: Evidence) -> Manifest:
    x, y = (TensorSpec(name=side, dtype=Datatype.FP32, shape=(DYNAMIC, features)) for side in "xy")
    return Manifest(
        schema_version=1,
        name=name,
        source=SourceVersion(uri=f"models:/{name}/1", version="1", run_id="run", sha256="0" * 64),
        signature=Signature(inputs=(x,), outputs=(y,)),
        variant=VariantInfo(recipe="fp32", precision="fp32", target="cpu", opset=OPSET),
        batching=Batching(max_rows=32, buckets=(1, 8, 32), row_independent=row_independent),
        evidence=evidence,
    )


def _model(scale: float, features: int, row_independent: bool) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["total"], keepdims=1),
        helper.make_node("Add", ["scaled", "total"], ["y"]),
    ]
    shape: list[str | int | None] = ["rows", features]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1 if row_independent else 0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model
