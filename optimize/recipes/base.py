"""The recipe protocol, the workbench a recipe gets, and how a graph is written.

A graph is always a directory with `model.onnx`, and `model.onnx.data` beside it if
the weights are too large for one protobuf message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.entries import Key
from mlctl.optimize.data import Rows

DATA_NAME = f"{MODEL_NAME}.data"

# A protobuf message holds less than 2 GiB; larger weights go to a separate file.
MAX_INLINE_BYTES = (1 << 31) - (1 << 20)

Precision = Literal["fp32", "fp16", "int8", "int4"]


class NotApplicableError(ValueError):
    """The recipe has nothing to change in this model; the message says why."""


class Target(StrEnum):
    """The target of a variant: one of ONNX Runtime's providers."""

    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The cost of quantizing one layer alone, as `Quality.distance`, and whether it was."""

    layer: str
    operator: str
    distance: float
    kept_in_float: bool


@dataclass(frozen=True, slots=True)
class Details:
    """The decisions of a recipe: settings in words, and layers, the costliest first.

    `remark` is a sentence for those who read the result.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[LayerCost, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Quality:
    """Distance of a graph's answers on the calibration rows from the fp32 graph's.

    `distance` is the worst output's relative L2 (0 is equal); `good` says that the goals
    hold with a margin, because other rows will judge; `words` has the numbers.
    """

    distance: float
    good: bool
    words: str


@dataclass(frozen=True, slots=True)
class Workbench:
    """The tools of a recipe besides the graph.

    `quality` runs the graph in a directory on the CPU. `store` caches a part of the work
    under a key, so that a killed run resumes: it returns the directory that its second argument
    filled. `step` reports a phase with the pieces of work done and their total.
    """

    calibration: Rows
    quality: Callable[[Path], Quality]
    store: Callable[[Key, Callable[[Path], None]], Path]
    step: Callable[[str, int, int], None]


class Recipe(Protocol):
    """One optimization. `version` changes when its output does, and is part of the cache key.

    `tuned` says that the output depends on the goals: the recipe searches until
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

        NotApplicableError if the model has nothing for the recipe, ValueError if it fails.
        """
        ...


def save_graph(model: Any, directory: Path) -> None:
    """Write an ONNX model as model.onnx, with model.onnx.data beside it if it is too large.

    Existing files are replaced. Do not use the model afterwards: its weights may have
    moved to the file.
    """
    import onnx

    path, data = directory / MODEL_NAME, directory / DATA_NAME
    data.unlink(missing_ok=True)
    external = model.ByteSize() > MAX_INLINE_BYTES
    onnx.save_model(model, str(path), save_as_external_data=external, location=data.name)
    if external:
        # The library makes it readable for its owner alone, but it is part of the bundle.
        data.chmod(path.stat().st_mode)
