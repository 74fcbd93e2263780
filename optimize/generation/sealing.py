"""The parts of a language model's bundle besides the engine's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.runtime.golden import save_golden

SIGNATURE = Signature(
    inputs=(TensorSpec(name="prompt", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
    outputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
)


def save_prompts(path: Path, continuations: Mapping[str, str]) -> None:
    """Write golden rows: prompts with the source model's own greedy continuations."""
    prompts, texts = (
        np.array([text.encode() for text in side], dtype=object)
        for side in (continuations.keys(), continuations.values())
    )
    save_golden(path, {"prompt": prompts}, {"text": texts})
