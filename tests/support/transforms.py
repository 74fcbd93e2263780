"""A model of token ids, and the transform that makes them from text and names the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    TRANSFORM_FOLDER,
    Batching,
    Evidence,
    Manifest,
    SourceVersion,
    TransformSpec,
    VariantInfo,
)
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.services.model.golden import save_golden

LENGTH = 6

TOKENIZER = """
from pathlib import Path

import numpy as np

INPUTS = {"text": ("BYTES", [-1])}
OUTPUTS = {"kind": (bytes, [-1]), "total": ("float32", [-1])}
LENGTH = 6
WORDS = (Path(__file__).parent / "vocab.txt").read_text().split()
NUMBERS = {word: number for number, word in enumerate(WORDS, start=1)}
KINDS = np.array([b"small", b"large"], dtype=object)


def preprocess(inputs):
    ids = np.zeros((len(inputs["text"]), LENGTH), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(inputs["text"]):
        words = text.decode().split()[:LENGTH]
        if not words:
            raise ValueError(f"row {row}: the text has no words")
        ids[row, : len(words)] = [NUMBERS.get(word, len(WORDS) + 1) for word in words]
        mask[row, : len(words)] = 1
    return {"ids": ids, "mask": mask}


def postprocess(outputs):
    total = outputs["sum"]
    return {"kind": KINDS[(total > 3).astype(int)], "total": total * np.float32(0.5)}
"""
VOCABULARY = "one\ntwo\nthree\n"


def texts(*values: str) -> dict[str, np.ndarray]:
    """What a client of the tokenizing bundle sends."""
    return {"text": np.array([value.encode() for value in values], dtype=object)}


def text_signature() -> Signature:
    """What clients see."""
    return Signature(
        inputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(-1,)),),
        outputs=(
            TensorSpec(name="kind", dtype=Datatype.BYTES, shape=(-1,)),
            TensorSpec(name="total", dtype=Datatype.FP32, shape=(-1,)),
        ),
    )


def token_signature() -> Signature:
    """What the model takes and gives: the sum of the ids where the mask is 1."""
    ids, mask = (
        TensorSpec(name=name, dtype=Datatype.INT64, shape=(-1, LENGTH)) for name in ("ids", "mask")
    )
    total = TensorSpec(name="sum", dtype=Datatype.FP32, shape=(-1,))
    return Signature(inputs=(ids, mask), outputs=(total,))


def write_transform(folder: Path, source: str = TOKENIZER) -> Path:
    """A folder with `source` as its transform.py, and the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transform.py").write_text(source)
    (folder / "vocab.txt").write_text(VOCABULARY)
    return folder


def make_text_bundle(
    root: Path,
    source: str = TOKENIZER,
    *,
    name: str = "texts",
    api: Signature | None = None,
    golden: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> VerifiedBundle:
    """Write and seal a bundle of the token model with `source` as its transform.

    `golden` are the inputs, outputs and features of its golden rows.
    """
    root.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(), str(root / MODEL_NAME))
    write_transform(root / TRANSFORM_FOLDER, source)
    answers = {
        "kind": np.array([b"small", b"large"], dtype=object),
        "total": np.array([0.5, 2.5], np.float32),
    }
    save_golden(root / GOLDEN_NAME, *(golden or (texts("one", "two three"), answers)))
    (root / EVIDENCE_NAME).write_text(json.dumps({"variants": [{"recipe": "fp32"}]}))
    return seal(root, _manifest(name, api or text_signature()))


def _manifest(name: str, api: Signature) -> Manifest:
    return Manifest(
        schema_version=1,
        name=name,
        source=SourceVersion(uri=f"models:/{name}/1", version="1", run_id="run", sha256="0" * 64),
        signature=api,
        transform=TransformSpec(model_signature=token_signature()),
        variant=VariantInfo(recipe="fp32", precision="fp32", target="cpu", opset=20),
        batching=Batching(max_rows=8, buckets=(1, 8), row_independent=True),
        evidence=Evidence(rows=8, max_abs_error=1e-5, relative_l2=1e-6),
    )


def _model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axis"], ["sum"], keepdims=0),
    ]
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", LENGTH])
        for name in ("ids", "mask")
    ]
    total = helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["rows"])
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "tokens", tokens, [total], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model
