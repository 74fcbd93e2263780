from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME
from bundle.verify import VerifiedBundle
from services.session import FunctionSession, check_external_data, open_session
from tests.support.bundles import expected


def external_model(path: Path, location: str) -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "g", [], [output])
    path.write_bytes(helper.make_model(graph).SerializeToString())


def text_model(path: Path) -> None:
    value = helper.make_tensor_value_info("t", TensorProto.STRING, [None])
    out = helper.make_tensor_value_info("u", TensorProto.STRING, [None])
    graph = helper.make_graph([helper.make_node("Identity", ["t"], ["u"])], "g", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, str(path))


def test_runs_the_model(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME))
    x = np.array([[1, 2, 3, 4]], dtype=np.float32)
    assert session.provider == "cpu"
    np.testing.assert_allclose(session.run({"x": x})["y"], expected(x))


def test_unknown_and_absent_providers_are_refused(bundle: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="unknown") as caught:
        open_session(bundle.path(MODEL_NAME), "tpu")
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    with pytest.raises(MlctlError, match="CUDAExecutionProvider"):
        open_session(bundle.path(MODEL_NAME), "cuda")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd"])
def test_external_data_outside_is_refused(tmp_path: Path, location: str) -> None:
    external_model(tmp_path / MODEL_NAME, location)
    with pytest.raises(MlctlError) as caught:
        open_session(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.PATH_UNSAFE


def test_external_data_must_be_there(tmp_path: Path) -> None:
    external_model(tmp_path / MODEL_NAME, "weights.bin")
    with pytest.raises(MlctlError) as caught:
        check_external_data(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.FILE_MISSING
    (tmp_path / "weights.bin").write_bytes(b"\0\0\x80?")
    check_external_data(tmp_path / MODEL_NAME)


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        open_session(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.FILE_MISSING
    (tmp_path / MODEL_NAME).write_bytes(b"not a model")
    with pytest.raises(MlctlError) as caught:
        open_session(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_text_is_bytes_on_our_side(tmp_path: Path) -> None:
    text_model(tmp_path / MODEL_NAME)
    session = open_session(tmp_path / MODEL_NAME)
    words = np.array(["grün".encode(), b""], dtype=object)
    assert session.run({"t": words})["u"].tolist() == ["grün".encode(), b""]
    with pytest.raises(MlctlError, match="UTF-8"):
        session.run({"t": np.array([b"\xff"], dtype=object)})


def test_the_twin_runs_a_function() -> None:
    session = FunctionSession(lambda inputs: {"y": inputs["x"] + 1})
    assert session.run({"x": np.ones(2)})["y"].tolist() == [2, 2]
