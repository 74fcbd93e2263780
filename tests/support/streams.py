"""A bundle whose transform yields, and a record of what its code did, kept beside the test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from mlctl.bundle.manifest import GOLDEN_NAME, TRANSFORM_FOLDER, TransformSpec
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.services.model.golden import save_golden
from tests.support.bundles import make_bundle

# `y[0, 0]` is how many pieces the answer has; of a hundred the seventy-first fails.
COUNTING = """
import numpy as np

OUTPUTS = {"step": ("INT64", [-1, -1]), "left": ("INT64", [-1])}
made = []
closed = []
gates = []


def postprocess(outputs):
    count = int(outputs["y"][0, 0])
    try:
        for step in range(count):
            for gate in gates:
                assert gate.wait(60)
            made.append(step)
            if step == 70 and count == 100:
                raise RuntimeError("/srv/secret")
            rows = len(outputs["y"])
            yield {
                "step": np.full((rows, 1), step, np.int64),
                "left": np.full(rows, count - step - 1, np.int64),
            }
    finally:
        closed.append(count)
"""


def make_stream_bundle(root: Path, source: str = COUNTING) -> VerifiedBundle:
    """The tiny model with `source` as its transform, which makes `step` and `left`."""
    plain = make_bundle(root)
    (root / TRANSFORM_FOLDER).mkdir()
    (root / TRANSFORM_FOLDER / "transform.py").write_text(source)
    signature = plain.manifest.signature
    step, left = (
        TensorSpec(name=name, dtype=Datatype.INT64, shape=shape)
        for name, shape in (("step", (DYNAMIC, DYNAMIC)), ("left", (DYNAMIC,)))
    )
    api = Signature(inputs=signature.inputs, outputs=(step, left))
    rows = {"x": np.array([[1, 0, 0, 0]], np.float32)}
    answer = {"step": np.array([[0, 1, 2]]), "left": np.array([0])}
    save_golden(root / GOLDEN_NAME, rows, answer)
    changes = {"signature": api, "transform": TransformSpec(model_signature=signature), "files": ()}
    return seal(root, plain.manifest.model_copy(update=changes))


def code_of(bundle: VerifiedBundle) -> ModuleType:
    """The transform's module, once a scorer of `bundle` was opened."""
    return sys.modules[f"mlctl_transform_{bundle.digest}"]


def counting_row(pieces: int) -> list[float]:
    """A row that is answered in so many pieces."""
    return [0.0, float(pieces), 0.0, 0.0]
