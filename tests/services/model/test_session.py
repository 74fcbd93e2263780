import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model import int8_kernels, session
from mlctl.services.model.session import open_session
from mlctl.services.model.tensorrt.provider import Providers
from tests.services.model.tensorrt.graphs import scaling
from tests.support.bundles import expected

ROOT = Path(__file__).parents[3]


def text_model(path: Path) -> None:
    value = helper.make_tensor_value_info("t", TensorProto.STRING, [None])
    out = helper.make_tensor_value_info("u", TensorProto.STRING, [None])
    graph = helper.make_graph([helper.make_node("Identity", ["t"], ["u"])], "g", [value], [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, str(path))


def test_session__model__is_run(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME))
    x = np.array([[1, 2, 3, 4]], dtype=np.float32)
    assert session.provider == "cpu"
    np.testing.assert_allclose(session.run({"x": x})["y"], expected(x))


def test_open_session__unknown_or_missing_provider__is_rejected(bundle: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="unknown") as caught:
        open_session(bundle.path(MODEL_NAME), "tpu")
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    with pytest.raises(MlctlError, match="CUDAExecutionProvider"):
        open_session(bundle.path(MODEL_NAME), "cuda")


def test_open_session__tensorrt_not_installed__names_the_extra(bundle: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="'tensorrt' is not available") as caught:
        open_session(bundle.path(MODEL_NAME), "tensorrt")
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    assert "'.[trt]'" in caught.value.hint


def test_open_session__missing_model__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        open_session(tmp_path / MODEL_NAME)
    assert caught.value.code is ErrorCode.FILE_MISSING


def test_session__text__is_bytes(tmp_path: Path) -> None:
    text_model(tmp_path / MODEL_NAME)
    session = open_session(tmp_path / MODEL_NAME)
    words = np.array(["grün".encode(), b""], dtype=object)
    assert session.run({"t": words})["u"].tolist() == ["grün".encode(), b""]
    with pytest.raises(MlctlError, match="UTF-8"):
        session.run({"t": np.array([b"\xff"], dtype=object)})


def test_session__unaligned_input__gives_the_same_answer(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME))
    for rows in (8, 2000):
        x = np.random.default_rng(3).normal(size=(rows, 4)).astype(np.float32)
        want = session.run({"x": x})["y"]
        for offset in range(1, 17):
            body = memoryview(b"-" * offset + x.tobytes())
            moved = np.frombuffer(body[offset:], np.float32).reshape(x.shape)
            assert session.run({"x": moved})["y"].tobytes() == want.tobytes()


@pytest.mark.slow
def test_session__opened__sends_no_telemetry(bundle: VerifiedBundle, tmp_path: Path) -> None:
    """Its wheels keep an identifier of the device in the home of whoever they report on."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mlctl.services.model.session import open_session\n"
        "open_session(Path(sys.argv[1]))"
    )
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-c", script, str(bundle.path(MODEL_NAME))]
    # Nothing else of ours: the runtime is also silent where a variable says that it is tested.
    subprocess.run(command, cwd=ROOT, env={"HOME": str(home)}, check=True, timeout=60)
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("shape", "expected_options"),
    [
        (("rows", 3), {}),
        (("rows", "length"), {"cudnn_conv_algo_search": "HEURISTIC"}),
    ],
)
def test_open_session__cuda__sets_the_providers_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int | str, ...],
    expected_options: dict[str, str],
) -> None:
    asked: list[object] = []
    on_cpu = session.load_onnx

    def load(model: Path, providers: Providers, threads: int) -> object:
        asked.extend(providers)
        return on_cpu(model, [("CPUExecutionProvider", {})], threads)

    monkeypatch.setattr(session, "load_onnx", load)
    open_session(scaling(tmp_path / "model.onnx", shape), "cuda")
    assert asked == [("CUDAExecutionProvider", expected_options)]


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_int8__weights_and_inputs_at_their_limits__do_not_saturate(
    tmp_path: Path, rows: int
) -> None:
    """The fast kernels of x86 without VNNI would clip the sum of two products to 32767."""
    weights = np.full((64, 8), 127, np.int8)
    inputs = np.full((rows, 64), 255, np.uint8)
    found = open_session(_product(tmp_path, weights)).run({"x": inputs})["y"]
    np.testing.assert_array_equal(found, inputs.astype(np.int32) @ weights.astype(np.int32))


def test_int8__fast_kernels_are_exact_here__are_used(tmp_path: Path) -> None:
    """The probe says what the fast kernels answer on this processor, and the option follows it."""
    weights = np.full((64, 8), 127, np.int8)
    inputs = np.full((4, 64), 255, np.uint8)
    model = _product(tmp_path, weights)
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.add_session_config_entry(int8_kernels.OPTION, "0")
    fast = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    exact = np.array_equal(
        fast.run(None, {"x": inputs})[0], inputs.astype(np.int32) @ weights.astype(np.int32)
    )
    assert int8_kernels.fast_kernels_are_exact() == exact
    opened = session.load_onnx(model, [("CPUExecutionProvider", {})], 1).get_session_options()
    assert opened.get_session_config_entry(int8_kernels.OPTION) == ("0" if exact else "1")


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("weight", [-64, 64])
def test_int8__weights_of_7_bits__are_exact_on_the_fast_kernels_of_every_processor(
    tmp_path: Path, weight: int, rows: int
) -> None:
    weights = np.full((64, 8), weight, np.int8)
    inputs = np.full((rows, 64), 255, np.uint8)
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.add_session_config_entry(int8_kernels.OPTION, "0")
    model = str(_product(tmp_path, weights))
    fast = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    expected = inputs.astype(np.int32) @ weights.astype(np.int32)
    np.testing.assert_array_equal(fast.run(None, {"x": inputs})[0], expected)


@pytest.mark.parametrize(("exact", "expected"), [(True, "0"), (False, "1")])
def test_int8__option__follows_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exact: bool, expected: str
) -> None:
    monkeypatch.setattr(int8_kernels, "fast_kernels_are_exact", lambda: exact)
    assert int8_kernels.precision_option(_product(tmp_path, np.ones((4, 2), np.int8))) == expected


def test_int8__graph_without_int8__is_not_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_kernels, "fast_kernels_are_exact", lambda: pytest.fail("probed"))
    assert int8_kernels.precision_option(scaling(tmp_path / "model.onnx", ("rows", 3))) == "0"


def _product(directory: Path, weights: np.ndarray) -> Path:
    """Write a graph that multiplies 8-bit integers with `weights`."""
    inputs, outputs = weights.shape
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "limits",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["rows", outputs])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, str(directory / "model.onnx"))
    return directory / "model.onnx"
