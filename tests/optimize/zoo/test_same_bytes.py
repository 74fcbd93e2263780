"""The same model gives the same file, whatever process made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlctl.optimize.proofs.reference import TorchReference
from tests.optimize.zoo import models
from tests.optimize.zoo.prove import Arrays, Free, signature_of

PROJECT = Path(__file__).parents[3]


def write(root: Path) -> dict[str, bytes]:
    """Export what could vary: dictionaries, dynamic sizes, renamed values, a subgraph."""
    ids = np.arange(30).reshape(3, 10)
    free = {"ids": (1,), "mask": (1,), "tokens": (1,)}
    torch.manual_seed(3)
    cases: list[tuple[nn.Module, Arrays, tuple[str, ...], Free]] = [
        (models.Encoder(), {"ids": ids, "mask": np.ones_like(ids)}, ("embedding", "tokens"), free),
        (models.Branching(), {"x": np.ones((3, 4), np.float32)}, ("y",), {}),
    ]
    files = {}
    for module, inputs, outputs, axes in cases:
        signature = signature_of(module, inputs, outputs, axes)
        directory = root / type(module).__name__
        directory.mkdir(parents=True)
        TorchReference(module.eval(), signature).export(directory, inputs)
        files[directory.name] = (directory / "model.onnx").read_bytes()
    return files


@pytest.mark.slow
def test_export__another_hash_seed__writes_the_same_bytes(tmp_path: Path) -> None:
    here = write(tmp_path / "here")
    module = "tests.optimize.zoo.test_same_bytes"
    code = f"import sys, pathlib, {module} as m; m.write(pathlib.Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there")],
        cwd=PROJECT,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
        capture_output=True,
    )
    there = {path.parent.name: path.read_bytes() for path in tmp_path.glob("there/*/model.onnx")}
    assert len(here) == 2
    assert there == here
