"""A bundle whose model has two inputs and two outputs of unlike types."""

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
    Manifest,
    SourceVersion,
    VariantInfo,
)
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.services.layout.bento_layout import BentoContents, combine_bundles
from mlctl.services.model.golden import save_golden
from tests.support.bundles import OPSET, make_bundle

Arrays = dict[str, np.ndarray]


def answer_of(x: np.ndarray, n: np.ndarray) -> Arrays:
    """What the model answers: `y = x / 3`, and `m = n * 3`."""
    return {"y": x / np.float32(3), "m": n * 3}


def make_pair_bundle(root: Path) -> VerifiedBundle:
    """Write and seal a bundle at `root`: `x` and `y` FP32 [-1, 2], `n` and `m` INT32 [-1, 3]."""
    root.mkdir(parents=True)
    onnx.save(_model(), str(root / MODEL_NAME))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    n = np.arange(12, dtype=np.int32).reshape(4, 3)
    save_golden(root / GOLDEN_NAME, {"x": x, "n": n}, answer_of(x, n))
    (root / EVIDENCE_NAME).write_text(json.dumps({"variants": [{"recipe": "fp32"}]}))
    manifest = Manifest(
        schema_version=1,
        name="tiny",
        source=SourceVersion(uri="models:/tiny/1", version="1", run_id="run", sha256="0" * 64),
        signature=Signature(inputs=_specs("x", "n"), outputs=_specs("y", "m")),
        variant=VariantInfo(recipe="fp32", precision="fp32", target="cpu", opset=OPSET),
        batching=Batching(max_rows=32, buckets=(1, 8, 32), row_independent=True),
        evidence=Evidence(rows=4, max_abs_error=1e-5, relative_l2=1e-6),
    )
    return seal(root, manifest)


def make_pair_pipeline(root: Path) -> BentoContents:
    """A pipeline `both`: `x` goes through the model `first` before the pair, `n` does not."""
    first = make_bundle(root / "first", name="first", features=2)
    return combine_bundles([first, make_pair_bundle(root / "pair")], "both", ["tiny.x=first.y"])


def _specs(real: str, whole: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec(name=real, dtype=Datatype.FP32, shape=(DYNAMIC, 2)),
        TensorSpec(name=whole, dtype=Datatype.INT32, shape=(DYNAMIC, 3)),
    )


def _sides(real: str, whole: str) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(real, TensorProto.FLOAT, ["rows", 2]),
        helper.make_tensor_value_info(whole, TensorProto.INT32, ["rows", 3]),
    ]


def _model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Div", ["x", "real_three"], ["y"]),
        helper.make_node("Mul", ["n", "three"], ["m"]),
    ]
    threes = [
        helper.make_tensor("real_three", TensorProto.FLOAT, [], [3.0]),
        helper.make_tensor("three", TensorProto.INT32, [], [3]),
    ]
    graph = helper.make_graph(nodes, "pair", _sides("x", "n"), _sides("y", "m"), threes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model
