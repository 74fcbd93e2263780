"""What a recipe is, what it works with, and how a graph is written.

A graph is always a directory with `model.onnx`, and `model.onnx.data` beside it where
the weights are too large for one protobuf message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from bundle.entries import Key
from bundle.manifest import MODEL_NAME
from optimize.data import Rows

DATA_NAME = f"{MODEL_NAME}.data"
TWIN_NAME = "twin.onnx"

# A protobuf message holds less than 2 GiB; weights beyond that go to a file of their own.
MAX_INLINE_BYTES = (1 << 31) - (1 << 20)

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class Target(StrEnum):
    """What a variant is to run on. CPU and CUDA are ONNX Runtime's providers."""

    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


class Calibrator(StrEnum):
    """How static INT8 turns observed activations into a range. AUTO tries all, keeps the best."""

    AUTO = "auto"
    MINMAX = "minmax"
    ENTROPY = "entropy"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What quantizing one layer alone costs, as `Quality.distance`, and what became of it."""

    layer: str
    operator: str
    distance: float
    kept_in_float: bool


@dataclass(frozen=True, slots=True)
class Details:
    """What a recipe decided on its way: its settings in words, and layers, the costliest first."""

    settings: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[LayerCost, ...] = ()


@dataclass(frozen=True, slots=True)
class Quality:
    """How near a graph's answers on the calibration rows are to the fp32 graph's.

    `distance` is the worst output's relative L2 (0 is equal); `good` says that the goals
    hold with a margin, because other rows will judge; `words` has the numbers.
    """

    distance: float
    good: bool
    words: str


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a recipe may use besides the graph.

    `quality` runs the graph in a directory on the CPU. `store` keeps a part of the work
    under a key, so that a killed run goes on from there: it returns the directory that
    its second argument filled. `step` reports how many of how many pieces of work are done.
    """

    calibration: Rows
    quality: Callable[[Path], Quality]
    store: Callable[[Key, Callable[[Path], None]], Path]
    step: Callable[[str, int, int], None]
    calibrator: Calibrator = Calibrator.AUTO


class Recipe(Protocol):
    """One optimization. `version` changes when its output does, and is part of the cache key.

    `tuned` says that the output depends on the goals, because the recipe searches until
    `Workbench.quality` is good.
    """

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def targets(self) -> frozenset[Target]: ...

    @property
    def version(self) -> int: ...

    @property
    def tuned(self) -> bool: ...

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:
        """Write model.onnx (and its data file) into `directory` from the fp32 graph `source`.

        Where the CPU has no kernels for the graph, `twin.onnx` is one with the same
        arithmetic that it can run. ValueError says why the recipe does not apply.
        """
        ...


def save_graph(model: Any, directory: Path, name: str = MODEL_NAME) -> None:
    """Write an ONNX model as `name`, with `name`.data beside it if it is too large.

    Files of those names are replaced. The model is not to be used afterwards: its
    weights may have moved to the file.
    """
    import onnx

    path, data = directory / name, directory / f"{name}.data"
    data.unlink(missing_ok=True)
    external = model.ByteSize() > MAX_INLINE_BYTES
    onnx.save_model(model, str(path), save_as_external_data=external, location=data.name)
    if external:
        # The library makes it readable for its owner alone; it travels with the graph.
        data.chmod(path.stat().st_mode)
