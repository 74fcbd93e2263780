from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.onnx_graph import has_data_files, read_graph


def external_model(path: Path, location: str) -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "g", [], [output])
    path.write_bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd"])
def test_read_graph__external_data_outside__is_rejected(tmp_path: Path, location: str) -> None:
    external_model(tmp_path / MODEL_NAME, location)
    with pytest.raises(MlctlError) as caught:
        read_graph(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.PATH_UNSAFE


def test_read_graph__external_data__must_exist_and_is_listed(tmp_path: Path) -> None:
    external_model(tmp_path / MODEL_NAME, "weights.bin")
    with pytest.raises(MlctlError, match=r"weights\.bin") as caught:
        read_graph(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.FILE_MISSING
    (tmp_path / "weights.bin").write_bytes(b"\0\0\x80?")
    files = read_graph(tmp_path / MODEL_NAME).files
    assert [path.name for path in files] == [MODEL_NAME, "weights.bin"]


def test_read_graph__initializers__are_no_inputs(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "length"]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
    ]
    constant = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    graph = helper.make_graph([node], "g", values, [output], [constant])
    onnx.save(helper.make_model(graph), str(tmp_path / MODEL_NAME))
    assert read_graph(tmp_path / MODEL_NAME).inputs == {"ids": (-1, -1), "x": (-1, 3)}


def test_read_graph__no_model__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        read_graph(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.FILE_MISSING
    (tmp_path / MODEL_NAME).write_bytes(b"not a model")
    with pytest.raises(MlctlError) as caught:
        read_graph(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_has_data_files__a_tensor_in_another_file__is_found_before_the_graph_is_parsed(
    tmp_path: Path,
) -> None:
    external_model(tmp_path / MODEL_NAME, "../secret")
    assert has_data_files(tmp_path / MODEL_NAME)
    model = helper.make_model(helper.make_graph([], "g", [], []))
    (tmp_path / "inline.onnx").write_bytes(model.SerializeToString())
    assert not has_data_files(tmp_path / "inline.onnx")
    assert has_data_files(tmp_path / "missing.onnx"), "read_graph reports it"
