"""A valid manifest document that tests alter."""

from __future__ import annotations

from typing import Any

from mlctl.bundle.manifest import Manifest

ZERO_SHA = "0" * 64


def manifest_document() -> dict[str, Any]:
    """The JSON document of a small valid manifest without files."""
    return {
        "schema_version": 1,
        "name": "digits",
        "source": {
            "uri": "models:/digits/3",
            "version": "3",
            "run_id": "abc",
            "sha256": ZERO_SHA,
            "pickle_allowed": False,
        },
        "signature": {
            "inputs": [{"name": "image", "dtype": "FP32", "shape": [-1, 1, 8, 8]}],
            "outputs": [{"name": "logits", "dtype": "FP32", "shape": [-1, 10]}],
        },
        "variant": {"recipe": "int8-cpu", "precision": "int8", "target": "cpu", "opset": 20},
        "batching": {"max_rows": 32, "buckets": [1, 8, 32], "row_independent": True},
        "evidence": {
            "rows": 500,
            "metric": "accuracy",
            "score": 0.99,
            "drop": 0.0,
            "drop_high": 0.002,
            "agreement": 1.0,
            "max_abs_error": 0.01,
            "relative_l2": 0.001,
        },
        "files": [],
    }


def small_manifest() -> Manifest:
    """The manifest of `manifest_document`."""
    return Manifest.model_validate(manifest_document())
