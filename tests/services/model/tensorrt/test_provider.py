from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlctl.bundle.manifest import Batching
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.services.model.tensorrt import provider as module
from mlctl.services.model.tensorrt.machine import Gpu
from mlctl.services.model.tensorrt.process import Cause, WorkerError, run_worker
from mlctl.services.model.tensorrt.provider import prepare_providers
from tests.services.model.tensorrt.graphs import scaling

pytestmark = pytest.mark.slow

GPU = Gpu("NVIDIA H200", "9.0", "580.65.06")
TABLE = Batching(max_rows=32, buckets=(1, 8, 32), row_independent=True)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in an empty home, on a machine that says it has what it takes."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr(module, "provider_problem", lambda: None)
    monkeypatch.setattr(module, "find_gpu", lambda: GPU)
    return scaling(tmp_path / "model.onnx")


def test_prepare_providers__new_model__builds_engines_in_a_worker(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def warm(command: str, request: Mapping[str, Any], *_: object) -> None:
        asked.append((command, request["model"]))
        scratch = request["providers"][0][1]["trt_engine_cache_path"]
        (Path(scratch) / "node_0_sm90.engine").write_bytes(b"engine")

    monkeypatch.setattr(module, "run_worker", warm)
    chain = prepare_providers(model, TABLE)
    assert prepare_providers(model, TABLE) == chain
    assert asked == [("warm", str(model))]
    assert [name for name, _ in chain] == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    options = chain[0][1]
    assert (Path(options["trt_engine_cache_path"]) / "node_0_sm90.engine").is_file()
    assert options["trt_profile_max_shapes"] == "x:32x3"


def test_prepare_providers__other_weights_or_batches__has_other_engines(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_worker", lambda *_: {})

    def directory(batching: Batching | None) -> str:
        chain = prepare_providers(model, batching)
        return chain[0][1]["trt_engine_cache_path"]

    found = {directory(TABLE), directory(None)}
    scaling(model, factor=3.0)
    assert len(found | {directory(TABLE)}) == 3


def test_prepare_providers__runtime_without_tensorrt__is_unavailable(model: Path) -> None:
    with pytest.raises(MlctlError, match="TensorrtExecutionProvider") as caught:
        prepare_providers(model, TABLE)
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE


def test_run_worker__warm__opens_a_session(model: Path) -> None:
    request = {"model": str(model), "providers": [["CPUExecutionProvider", {}]]}
    assert run_worker("warm", request, 60.0) == {}
    model.write_bytes(b"no model")
    with pytest.raises(WorkerError, match=r"cannot load model\.onnx") as caught:
        run_worker("warm", request, 60.0)
    assert caught.value.cause is Cause.REJECTED
