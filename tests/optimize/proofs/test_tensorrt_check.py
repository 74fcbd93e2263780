"""What TensorRT's importer says of the graphs that the recipes write; no GPU is needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.manifest import Batching
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.core.quiet import quiet
from mlctl.optimize.proofs import tensorrt_check as importer
from mlctl.optimize.proofs.tensorrt_check import check_importable
from mlctl.services.model.tensorrt.process import Cause, WorkerError
from mlctl.services.model.tensorrt.profile import SizeRange
from tests.services.model.tensorrt.graphs import convolution, scaling

pytestmark = pytest.mark.slow

TABLE = Batching(max_rows=8, buckets=(1, 8), row_independent=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolution(tmp_path_factory.mktemp("source") / "model.onnx")


def quantized(source: Path, target: Path, **options: Any) -> Path:
    """`source` in static INT8 as onnxruntime writes it, calibrated on random rows."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from onnxruntime.quantization.quant_utils import QuantFormat, QuantType
    from onnxruntime.quantization.quantize import quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            draw = np.random.default_rng(0)
            self._feeds = iter([{"x": draw.random((8, 1, 8, 8), dtype=np.float32)}])

        def get_next(self) -> Any:
            return next(self._feeds, None)

    with quiet():
        quantize_static(
            str(source),
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            **options,
        )
    return target


def test_check_importable__a_float_graph__is_accepted(source: Path) -> None:
    verdict = check_importable(source, TABLE)
    assert verdict.ok
    assert verdict.reason == ""
    assert verdict.engine_bytes
    assert verdict.seconds
    assert verdict.importer_version is not None
    assert verdict.importer_version.startswith("tensorrt-rtx 1.")


def test_check_importable__a_quantized_bias__is_rejected_with_the_reason(
    source: Path, tmp_path: Path
) -> None:
    verdict = check_importable(quantized(source, tmp_path / "model.onnx"), TABLE)
    assert verdict.ok is False
    assert "DequantizeLinear" in verdict.reason
    assert "Int32" in verdict.reason
    assert verdict.engine_bytes is None


def test_check_importable__symmetric_int8__is_accepted(source: Path, tmp_path: Path) -> None:
    options = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
    model = quantized(source, tmp_path / "model.onnx", extra_options=options)
    assert check_importable(model, TABLE).ok


def test_check_importable__dynamic_quantization__is_rejected(source: Path, tmp_path: Path) -> None:
    from onnxruntime.quantization.quant_utils import QuantType
    from onnxruntime.quantization.quantize import quantize_dynamic

    model = tmp_path / "model.onnx"
    with quiet():
        quantize_dynamic(str(source), str(model), weight_type=QuantType.QUInt8)
    verdict = check_importable(model, TABLE)
    assert verdict.ok is False
    assert "DynamicQuantizeLinear" in verdict.reason


def test_check_importable__other_dynamic_dimensions__need_a_range(tmp_path: Path) -> None:
    model = scaling(tmp_path / "model.onnx", ("rows", "length"))
    assert check_importable(model, TABLE, SizeRange(1, 16, 64)).ok


def test_check_importable__without_the_package__does_not_decide(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "find_spec", lambda _: None)
    verdict = check_importable(source, TABLE)
    assert verdict.ok is None
    assert verdict.reason == f"not checked. {install_hint('trt-check')}"


@pytest.mark.parametrize(
    ("cause", "ok"),
    [
        (Cause.CRASHED, False),
        (Cause.REJECTED, False),
        (Cause.TIMED_OUT, None),
        (Cause.UNAVAILABLE, None),
    ],
)
def test_check_importable__a_failing_process__decides_only_for_the_graph(
    source: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause, ok: bool | None
) -> None:
    def fail(*_: object) -> None:
        raise WorkerError(cause, "the reason")

    monkeypatch.setattr(importer, "build_engine", fail)
    verdict = check_importable(source, TABLE)
    assert verdict.ok is ok
    assert "the reason" in verdict.reason


def test_check_importable__no_model__is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(MlctlError) as caught:
        check_importable(tmp_path / "model.onnx", TABLE)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
