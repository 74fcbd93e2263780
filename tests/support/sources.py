"""Registered models and data files for tests that need neither MLflow nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlctl.registry.catalog import ModelFormat, SourceModel
from tests.support.bundles import make_bundle


def onnx_source(
    root: Path, *, version: str = "1", pickled: bool = False, row_independent: bool = True
) -> SourceModel:
    """A version of the model `tiny`, registered as ONNX (or marked as a pickle)."""
    bundle = make_bundle(root, row_independent=row_independent)
    return SourceModel(
        name="tiny",
        version=version,
        uri=f"models:/tiny/{version}",
        run_id="run",
        format=ModelFormat.PYTORCH if pickled else ModelFormat.ONNX,
        signature=bundle.manifest.signature,
        artifacts=root,
        model_path=root / "model.onnx",
        sha256=bundle.digest,
        pickle_allowed=pickled,
    )


def save_rows(path: Path, rows: Mapping[str, np.ndarray]) -> Path:
    """Write an .npz with exactly these arrays, and return its path."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, **rows)
    return path
