"""The nets of the benchmarks as bundles, with a row for each.

Every net has one input `x`, [rows, width], and one output `y`, so that every server can serve it.
Weights are random, so that nothing is downloaded.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlctl.bundle.manifest import (
    EVIDENCE_NAME,
    GOLDEN_NAME,
    MODEL_NAME,
    Evidence,
    Manifest,
    SourceVersion,
    VariantInfo,
)
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.optimize.inputs.batching import DEFAULT
from mlctl.services.model.golden import save_golden
from mlctl.services.model.session import open_session

NAME = "bench"
TOKENS = 32
OPSET = 20
MAX_ROWS = 64
_VOCABULARY = 30_522


@dataclass(frozen=True, slots=True)
class NetBundle:
    """A net as a bundle, one row for it, and ONNX Runtime's answer."""

    name: str
    bundle: VerifiedBundle
    row: np.ndarray
    answer: np.ndarray

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.bundle.root / MODEL_NAME

    @property
    def datatype(self) -> Datatype:
        """The element type of `x`."""
        return self.bundle.manifest.signature.inputs[0].dtype


def write_dense(path: Path, widths: Sequence[int], *, seed: int = 0) -> None:
    """Write a net of dense layers from `x`, float32 [rows, widths[0]], to `y`."""
    generator = np.random.default_rng(seed)
    nodes, weights, last = [], [], "x"
    layers = list(itertools.pairwise(widths))
    for index, (width_in, width_out) in enumerate(layers):
        weight = generator.normal(0, width_in**-0.5, (width_in, width_out)).astype(np.float32)
        bias = generator.normal(0, 0.1, width_out).astype(np.float32)
        weights += [
            numpy_helper.from_array(weight, f"w{index}"),
            numpy_helper.from_array(bias, f"b{index}"),
        ]
        final = index == len(layers) - 1
        sums = "y" if final else f"s{index}"
        nodes.append(helper.make_node("Gemm", [last, f"w{index}", f"b{index}"], [sums]))
        if not final:
            nodes.append(helper.make_node("Relu", [sums], [f"a{index}"]))
            last = f"a{index}"
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", widths[0]), ("y", widths[-1]))
    )
    graph = helper.make_graph(nodes, "dense", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    onnx.save(model, str(path))


def write_encoder(path: Path) -> None:
    """Write a transformer of MiniLM-L6's shape: `x`, int64 [rows, 32], to `y`, [rows, 384]."""
    import torch

    from benchmarks.nets import Encoder

    class Whole(torch.nn.Module):
        """The encoder for sentences of full length only."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
            (x,) = inputs
            return (self.encoder(x, torch.ones_like(x)),)

    from mlctl.optimize.proofs.export import export_torch

    torch.manual_seed(0)
    signature = _signature(Datatype.INT64, TOKENS, 384)
    example = (torch.zeros((2, TOKENS), dtype=torch.int64),)
    export_torch(Whole().eval(), example, signature, path)


def write_int8_encoder(path: Path) -> None:
    """Write the transformer of `write_encoder` quantized by `int8-static`.

    The recipe keeps no layer in float, since the answers of random weights prove nothing.
    """
    from mlctl.optimize.data import Rows
    from mlctl.optimize.recipes.base import Quality, Workbench
    from mlctl.optimize.recipes.quantized import Int8Static

    def store(_key: object, fill: Callable[[Path], None]) -> Path:
        shelf = Path(tempfile.mkdtemp(dir=scratch))
        fill(shelf)
        return shelf

    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, MODEL_NAME)
        write_encoder(source)
        calibration = Rows({"x": _words(TOKENS)}, None)
        good = Quality(0.0, good=True, words="not judged")
        bench = Workbench(calibration, lambda _: good, store, lambda *_: None)
        Int8Static().build(source, path.parent, bench)


def _signature(dtype: Datatype, width: int, width_out: int) -> Signature:
    x = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, width))
    y = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, width_out))
    return Signature(inputs=(x,), outputs=(y,))


def _floats(width: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(8, width)).astype(np.float32)


def _words(width: int) -> np.ndarray:
    return np.random.default_rng(3).integers(1, _VOCABULARY, (8, width))


@dataclass(frozen=True, slots=True)
class _NetKind:
    write: Callable[[Path], None]
    dtype: Datatype
    width: int
    width_out: int
    rows: Callable[[int], np.ndarray]


TINY_WIDTHS = (64, 128, 10)
DENSE_WIDTHS = (1024, 3072, 2048, 512)
# Of benchmarks/batch: 12 kFLOP and 1 MFLOP a row.
LIGHT_WIDTHS = (64, 64, 32, 1)
HEAVY_WIDTHS = (64, 512, 512, 384, 1)
_NETS: Mapping[str, _NetKind] = {
    "tiny": _NetKind(lambda path: write_dense(path, TINY_WIDTHS), Datatype.FP32, 64, 10, _floats),
    "dense": _NetKind(
        lambda path: write_dense(path, DENSE_WIDTHS), Datatype.FP32, 1024, 512, _floats
    ),
    "transformer": _NetKind(write_encoder, Datatype.INT64, TOKENS, 384, _words),
    "transformer int8": _NetKind(write_int8_encoder, Datatype.INT64, TOKENS, 384, _words),
    "light": _NetKind(lambda path: write_dense(path, LIGHT_WIDTHS), Datatype.FP32, 64, 1, _floats),
    "heavy": _NetKind(lambda path: write_dense(path, HEAVY_WIDTHS), Datatype.FP32, 64, 1, _floats),
}
NAMES = ("tiny", "dense", "transformer", "transformer int8")


def make_workload(name: str, root: Path) -> NetBundle:
    """Write the net called `name` as a sealed bundle at `root`."""
    kind = _NETS[name]
    root.mkdir(parents=True)
    kind.write(root / MODEL_NAME)
    rows = kind.rows(kind.width)
    answers = open_session(root / MODEL_NAME).run({"x": rows})
    save_golden(root / GOLDEN_NAME, {"x": rows}, answers)
    (root / EVIDENCE_NAME).write_text(json.dumps({"variants": [{"recipe": "fp32"}]}))
    manifest = Manifest(
        schema_version=1,
        name=NAME,
        source=SourceVersion(uri=f"models:/{NAME}/1", version="1", run_id="run", sha256="0" * 64),
        signature=_signature(kind.dtype, kind.width, kind.width_out),
        variant=VariantInfo(recipe="fp32", precision="fp32", target="cpu", opset=OPSET),
        batching=DEFAULT.batching(row_independent=True),
        evidence=Evidence(rows=len(rows), max_abs_error=1e-5, relative_l2=1e-6),
    )
    return NetBundle(name, seal(root, manifest), rows[:1], answers["y"][:1])
