"""The exported graph as it is: the baseline for all other variants."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.optimize.recipes.base import DATA_NAME, Details, Precision, Target, Workbench


@dataclass(frozen=True, slots=True)
class Fp32:
    """Copies the graph and its data file."""

    name: str = "fp32"
    precision: Precision = "fp32"
    targets: frozenset[Target] = frozenset(Target)
    version: int = 1
    tuned: bool = False

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:  # noqa: ARG002
        for name in (MODEL_NAME, DATA_NAME):
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, directory / name)
        return Details()
