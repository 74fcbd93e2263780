from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlctl.bundle.tensors import Datatype
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.catalog import ModelFormat
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.mlmodel import read_mlmodel

X = '{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}'
NAMED = '{"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}'
ROW = '{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [3]}}'
ODD = '{"type": "tensor", "tensor-spec": {"dtype": "complex64", "shape": [-1]}}'


def write_mlmodel(root: Path, **changes: Any) -> Path:
    """An MLmodel file of an ONNX model with `changes` to its top level."""
    document = {
        "flavors": {"onnx": {"data": "model.onnx"}, "python_function": {}},
        "signature": {"inputs": f"[{X}]", "outputs": f"[{X}]"},
        **changes,
    }
    root.mkdir(exist_ok=True)
    # Every JSON document is YAML too.
    (root / "MLmodel").write_text(json.dumps(document))
    return root


def test_read_mlmodel__unnamed_tensors__get_default_names(tmp_path: Path) -> None:
    stored = read_mlmodel(write_mlmodel(tmp_path), "models:/m/1")
    assert stored.format is ModelFormat.ONNX
    assert stored.path == tmp_path / "model.onnx"
    assert [spec.name for spec in stored.signature.inputs] == ["input"]
    assert [spec.name for spec in stored.signature.outputs] == ["output"]
    assert stored.signature.inputs[0].dtype is Datatype.FP32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signature": None}, "no signature"),
        ({"signature": {"inputs": f"[{X}]"}}, "it has no outputs"),
        (
            {"signature": {"inputs": '[{"type": "double", "name": "a"}]', "outputs": f"[{X}]"}},
            "table columns",
        ),
        ({"signature": {"inputs": f"[{X}, {X}]", "outputs": f"[{X}]"}}, "cannot be read \\("),
        ({"signature": {"inputs": f"[{ODD}]", "outputs": f"[{X}]"}}, "complex64"),
        ({"signature": {"inputs": f"[{NAMED}]", "outputs": f"[{NAMED}]"}}, "both named 'x'"),
        ({"signature": {"inputs": f"[{X}]", "outputs": f"[{ROW}]"}}, "'output' has shape .3.;"),
        ({"flavors": {"pytorch": "x"}}, "describes no flavor"),
        ({"flavors": {"spacy": {}, "python_function": {}}}, "flavor is spacy, not one of onnx"),
    ],
)
def test_read_mlmodel__an_unusable_model__is_named(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        read_mlmodel(write_mlmodel(tmp_path, **changes), "models:/m/1")
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert caught.value.message.startswith("models:/m/1")


@pytest.mark.parametrize("content", ["", "[1]", "{flavors: [", "x: 1"])
def test_read_mlmodel__a_broken_file__is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "MLmodel").write_text(content)
    with pytest.raises(MlctlError) as caught:
        read_mlmodel(tmp_path, "models:/m/1")
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


@pytest.mark.parametrize("data", ["../../etc/passwd", "/etc/passwd", "a/../../b"])
def test_read_mlmodel__a_path_outside__is_rejected(tmp_path: Path, data: str) -> None:
    write_mlmodel(tmp_path, flavors={"onnx": {"data": data}})
    with pytest.raises(MlctlError) as caught:
        read_mlmodel(tmp_path, "models:/m/1")
    assert caught.value.code is ErrorCode.PATH_UNSAFE


@pytest.mark.slow
def test_read_mlmodel__pt2_with_code__counts_as_pickle(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    root = tmp_path / "model"
    shutil.copytree(catalog.resolve("digits/1").artifacts, root)
    assert not read_mlmodel(root, "digits").pickled
    text = (root / "MLmodel").read_text()
    (root / "MLmodel").write_text(text.replace("code: null", "code: code"))
    assert read_mlmodel(root, "digits").pickled
