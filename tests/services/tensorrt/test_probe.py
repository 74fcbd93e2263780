from collections.abc import Iterator

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.tensorrt import probe as module
from services.tensorrt.cuda import CudaError, Driver
from services.tensorrt.options import Flavour
from services.tensorrt.probe import probe_device, require_device
from services.tensorrt.process import Cause, WorkerError

ANSWER = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "driver": "580.65.06",
    "tensorrt_version": "11.4.0.106",
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    probe_device.cache_clear()
    yield
    probe_device.cache_clear()


def test_without_the_package_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.setattr(module, "run_worker", lambda *_: pytest.fail("a worker was started"))
    assert probe_device().device is None
    assert "tensorrt is not installed" in probe_device().reason


def test_a_real_library_says_whether_there_is_a_driver() -> None:
    probe = probe_device(Flavour.RTX)
    try:
        Driver()
    except CudaError as error:
        assert probe.device is None
        assert probe.reason == str(error)
    else:
        assert probe.device is not None
        assert probe.device.driver


def test_the_device_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(command: str, *_: object) -> dict[str, str]:
        asked.append(command)
        return ANSWER

    monkeypatch.setattr(module, "run_worker", answer)
    monkeypatch.setattr(module, "find_spec", lambda _: object())
    device = require_device("tensorrt-raw", "trt")
    assert device == require_device("tensorrt-raw", "trt")
    assert (device.name, device.compute_capability) == ("NVIDIA H200", "9.0")
    assert asked == ["probe"]


def test_an_absent_device_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> dict[str, str]:
        raise WorkerError(Cause.CRASHED, "its process died of SIGSEGV")

    monkeypatch.setattr(module, "run_worker", crash)
    monkeypatch.setattr(module, "find_spec", lambda _: object())
    with pytest.raises(MlctlError, match=r"'tensorrt-raw' was asked for.*SIGSEGV") as caught:
        require_device("tensorrt-raw", "trt")
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    assert "mlctl[trt]" in caught.value.hint
