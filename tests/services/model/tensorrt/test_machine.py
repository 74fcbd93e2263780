"""The GPU as NVML describes it: a real NVML without a driver, and one that has GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.tensorrt import machine as module
from mlctl.services.model.tensorrt.machine import (
    Gpu,
    find_gpu,
    linked_major,
    major_mismatch,
    provider_problem,
    tensorrt_version,
)

H200 = Gpu("NVIDIA H200", "9.0", "580.65.06")
L4 = Gpu("NVIDIA L4", "8.9", "580.65.06")


class FakeNvml(ModuleType):
    """NVML of a machine with two GPUs."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.gpus = {0: H200, 1: L4, "GPU-abc": L4}

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self._find(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        return self._find(uuid)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Gpu) -> tuple[int, int]:  # noqa: N802
        major, minor = map(int, gpu.compute_capability.split("."))
        return major, minor

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return H200.driver

    def _find(self, key: Any) -> Gpu:
        if key not in self.gpus:
            raise self.NVMLError("Not Found")
        found: Gpu = self.gpus[key]
        return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.parametrize(
    ("visible", "gpu"), [(None, H200), ("0,1", H200), ("1,0", L4), ("GPU-abc,GPU-x", L4)]
)
def test_find_gpu__several__is_the_first_that_cuda_sees(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpu: Gpu
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert find_gpu() == gpu
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "reason"), [("", "hides every GPU"), ("-1", "hides every GPU"), ("7", "Not Found")]
)
def test_find_gpu__none_is_visible__says_why(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, reason: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(MlctlError, match=reason) as caught:
        find_gpu()
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    assert nvml.open == 0


def test_find_gpu__package_is_missing__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MlctlError, match="nvidia-ml-py is not installed"):
        find_gpu()


def test_find_gpu__real_nvml__describes_the_gpu_or_says_what_is_missing() -> None:
    try:
        gpu = find_gpu()
    except MlctlError as error:
        assert "no NVIDIA GPU" in error.message
        assert "mlctl doctor" in error.hint
    else:
        assert all((gpu.name, gpu.compute_capability, gpu.driver))


def test_linked_major__library_file__is_its_major_version(tmp_path: Path) -> None:
    library = tmp_path / "provider.so"
    library.write_bytes(b"\x7fELF\0libcudnn.so.9\0libnvinfer.so.10\0libnvonnxparser.so.10\0")
    assert linked_major(library) == "10"
    library.write_bytes(b"\x7fELF\0libcudnn.so.9\0")
    assert linked_major(library) is None


def test_major_mismatch__another_major__is_described() -> None:
    assert major_mismatch("10", "10.16.1.11") is None
    assert major_mismatch(None, "11.4.0.106") is None
    assert major_mismatch("10", "11.4.0.106") == (
        "its provider needs TensorRT 10, and 11.4.0.106 is installed"
    )
    assert major_mismatch("10", None) == "TensorRT 10 is not installed"


def test_tensorrt_version__any_distribution__is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_version", {"tensorrt-cu12": "10.16.1"}.get)
    assert tensorrt_version() == "10.16.1"
    monkeypatch.setattr(module, "installed_version", lambda _: None)
    assert tensorrt_version() is None


def test_provider_problem__no_provider_or_another_major__is_described(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").touch()
    origin = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(module, "find_spec", lambda _: origin)
    assert provider_problem() == "the installed ONNX Runtime has no TensorRT provider"
    library = package / "capi" / "libonnxruntime_providers_tensorrt.so"
    library.write_bytes(b"libnvinfer.so.10\0")
    monkeypatch.setattr(module, "installed_version", {"tensorrt-cu13": "11.4.0.106"}.get)
    assert provider_problem() == "its provider needs TensorRT 10, and 11.4.0.106 is installed"
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert provider_problem() == "ONNX Runtime is not installed"
