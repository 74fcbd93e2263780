"""The exported graph as it is: the baseline that every other variant must earn its place over."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bundle.manifest import MODEL_NAME
from optimize.data import Rows
from optimize.recipes.base import DATA_NAME, Precision


@dataclass(frozen=True, slots=True)
class Fp32:
    """Copies the graph and its data file."""

    name: str = "fp32"
    precision: Precision = "fp32"
    version: int = 1

    def build(self, source: Path, directory: Path, calibration: Rows) -> None:  # noqa: ARG002
        for name in (MODEL_NAME, DATA_NAME):
            if (source.parent / name).is_file():
                shutil.copyfile(source.parent / name, directory / name)
