"""What a recipe is, and how a graph is written: always as a directory with `model.onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from bundle.manifest import MODEL_NAME
from optimize.data import Rows

DATA_NAME = f"{MODEL_NAME}.data"

# A protobuf message holds less than 2 GiB; weights beyond that go to a file of their own.
_MAX_INLINE_BYTES = (1 << 31) - (1 << 20)

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class Recipe(Protocol):
    """One optimization. `version` changes when its output does, and is part of the cache key."""

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def version(self) -> int: ...

    def build(self, source: Path, directory: Path, calibration: Rows) -> None:
        """Write model.onnx (and its data file) into `directory` from the fp32 graph `source`.

        ValueError says why the recipe does not apply to this graph.
        """
        ...


def save_graph(model: Any, directory: Path) -> None:
    """Write an ONNX model as model.onnx, with model.onnx.data beside it if it is too large."""
    import onnx

    onnx.save_model(
        model,
        str(directory / MODEL_NAME),
        save_as_external_data=model.ByteSize() > _MAX_INLINE_BYTES,
        location=DATA_NAME,
    )
