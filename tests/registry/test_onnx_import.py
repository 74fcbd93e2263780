"""Plain ONNX files become registered versions, or are rejected with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.catalog import ModelFormat
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.onnx_import import OnnxImport, read_import
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.support import onnx_models


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def rejection(path: Path, *, name: str = "vad", **options: Any) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        read_import(path, name, **options)
    return caught.value


def tensors(read: OnnxImport) -> list[str]:
    both = (*read.signature.inputs, *read.signature.outputs)
    return [f"{spec.name} {spec.dtype.value} {list(spec.shape)}" for spec in both]


def test_import__symbolic_sizes__are_dynamic(tmp_path: Path) -> None:
    read = read_import(saved(onnx_models.recurrent(), tmp_path), "vad")
    assert tensors(read) == [
        "x FP32 [-1, -1, 3]",
        "embedding FP32 [-1, 5]",
        "tokens FP32 [-1, -1, 5]",
    ]


def test_import__a_folder_with_one_graph__is_read(tmp_path: Path) -> None:
    saved(onnx_models.weights_as_inputs(), tmp_path)
    read = read_import(tmp_path, "vad")
    assert tensors(read) == ["x FP32 [-1, 4]", "y FP32 [-1, 3]"]


def test_import__weights_in_another_file__are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(
        onnx_models.weights_as_inputs(),
        str(path),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (weight, _) = read_import(path, "vad").model.graph.initializer
    assert weight.raw_data


def test_import__a_fixed_batch__is_opened_by_the_signature(tmp_path: Path) -> None:
    path = saved(onnx_models.fixed_batch(), tmp_path)
    error = rejection(path)
    assert error.message == "tensor 'x' of the graph has the fixed batch size 1"
    assert error.hint.endswith("pass --signature x=-1,4")
    assert tensors(read_import(path, "vad", ("x=-1,4",))) == ["x FP32 [-1, 4]", "y FP32 [-1, 4]"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (TensorProto.FLOAT, "0.5", np.float32(0.5)),
        (TensorProto.INT64, "16000", np.int64(16000)),
        (TensorProto.BOOL, "true", np.True_),
    ],
)
def test_import__an_input_without_dimensions__becomes_a_constant(
    tmp_path: Path, kind: int, text: str, expected: np.generic
) -> None:
    path = saved(onnx_models.with_threshold(kind), tmp_path)
    error = rejection(path)
    assert error.message == "input 'limit' of the graph is a single value for all rows"
    assert error.hint == "Fix it with --constant limit=VALUE."
    read = read_import(path, "vad", constants=(f"limit={text}",))
    assert tensors(read) == ["x FP32 [-1, 4]", "y FP32 [-1, 4]"]
    (constant,) = read.model.graph.initializer
    assert onnx.numpy_helper.to_array(constant) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "vad/1"}, "expected the name of a model"),
        ({"name": "vad-optimized"}, "expected the name of a model"),
        ({"shapes": ("x",)}, "write it as NAME=-1,SIZE,..."),
        ({"shapes": ("x=-1,four",)}, "as whole numbers"),
        ({"shapes": ("x=-2,4",)}, "as whole numbers"),
        ({"shapes": ("z=-1,4",)}, "no tensor 'z'"),
        ({"shapes": ("x=-1,4,4",)}, "has 2 dimensions in the graph, 3 in --signature"),
        ({"constants": ("z=1",)}, "no input 'z'"),
        ({"constants": ("limit=1.5",)}, "not a value of int64"),
        ({"constants": ("limit=9223372036854775808",)}, "not a value of int64"),
    ],
)
def test_import__a_wrong_option__is_rejected(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    error = rejection(saved(onnx_models.with_threshold(TensorProto.INT64), tmp_path), **options)
    assert error.code is ErrorCode.INVALID_INPUT
    assert message in error.message


def test_import__what_is_no_graph__is_rejected(tmp_path: Path) -> None:
    assert rejection(tmp_path / "none.onnx").code is ErrorCode.INVALID_INPUT
    assert "holds 0 .onnx files" in rejection(tmp_path).message
    (tmp_path / "model.onnx").write_bytes(b"\x80\x04K\x01.")
    assert "is not a valid ONNX model" in rejection(tmp_path / "model.onnx").message
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    outputs = [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)]
    model = onnx_models.model([node], [onnx_models.value("x", "n")], outputs, {})
    assert "tensor 'y' of the graph is a sequence" in rejection(saved(model, tmp_path)).message
    node = helper.make_node("Relu", ["x:0"], ["y"])
    odd = onnx_models.model(
        [node], [onnx_models.value("x:0", "n")], [onnx_models.value("y", "n")], {}
    )
    assert "'x:0'" in rejection(saved(odd, tmp_path)).message


@pytest.mark.slow
def test_import__valid_model__registers_a_version_that_optimize_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    catalog = MlflowCatalog()
    read = read_import(saved(onnx_models.recurrent(), tmp_path), "vad")
    imported = catalog.import_onnx(read)
    source = catalog.resolve(imported.uri)
    assert (imported.uri, source.format) == ("models:/vad/1", ModelFormat.ONNX)
    assert source.signature == imported.signature == read.signature
