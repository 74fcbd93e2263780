"""A revision that is wrong in nothing but its predictions: as fast, as healthy, as proved."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnx import helper

from mlctl.bundle.manifest import GOLDEN_NAME, MANIFEST_NAME, MODEL_NAME
from mlctl.bundle.verify import VerifiedBundle, seal, verify
from mlctl.services.model.golden import load_golden, save_golden


def negated(bundle: Path, root: Path) -> VerifiedBundle:
    """The bundle again, at `root`, with every output's sign turned round; golden rows too."""
    manifest = verify(bundle).manifest
    shutil.copytree(bundle, root)
    (root / MANIFEST_NAME).unlink()
    model = onnx.load(root / MODEL_NAME)
    for output in model.graph.output:
        for node in model.graph.node:
            node.output[:] = [_right(name, output.name) for name in node.output]
            node.input[:] = [_right(name, output.name) for name in node.input]
        model.graph.node.append(helper.make_node("Neg", [f"right_{output.name}"], [output.name]))
    onnx.checker.check_model(model)
    onnx.save(model, str(root / MODEL_NAME))
    inputs, outputs = load_golden(root / GOLDEN_NAME)
    save_golden(root / GOLDEN_NAME, inputs, {name: -array for name, array in outputs.items()})
    return seal(root, manifest)


def _right(name: str, output: str) -> str:
    return f"right_{name}" if name == output else name
