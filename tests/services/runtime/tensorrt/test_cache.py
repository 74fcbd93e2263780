from pathlib import Path

import pytest

from bundle.clock import ManualClock
from bundle.entries import Key, read_record
from bundle.errors import ErrorCode, MlctlError
from bundle.home import HOME_VARIABLE
from services.runtime.tensorrt.cache import fetch_engine, timing_directory
from services.runtime.tensorrt.devices import Gpu
from services.runtime.tensorrt.key import Device, engine_key
from services.runtime.tensorrt.process import Cause, WorkerError

MODEL = Path("model.onnx")
DEVICE = Device(Gpu("NVIDIA H200", "9.0", "580.65.06"), "10.16.1.11", "1.31.1")
FOREIGN = Device(Gpu("NVIDIA L4", "8.9", "580.65.06"), "10.16.1.11", "1.31.1")
ENGINE_NAME = "node_0_sm90.engine"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


class Builder:
    """Writes an engine and counts how often it was asked to."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.builds = 0
        self._clock = clock

    def __call__(self, directory: Path) -> None:
        self.builds += 1
        (directory / ENGINE_NAME).write_bytes(b"engine")
        if self._clock is not None:
            self._clock.advance(42.0)


def key(device: Device = DEVICE) -> Key:
    return engine_key("a" * 64, device, {}, None)


def test_an_engine_is_built_once_and_says_what_it_is() -> None:
    clock = ManualClock()
    build = Builder(clock)
    first = fetch_engine(MODEL, key(), build, clock)
    again = fetch_engine(MODEL, key(), build, clock)
    assert (first.reused, again.reused, build.builds) == (False, True, 1)
    record = read_record(again.root)
    assert record is not None
    assert record.seconds == 42.0
    assert record.key["name"] == "NVIDIA H200"
    assert list(record.files) == [ENGINE_NAME]


def test_another_gpus_engine_is_not_found() -> None:
    build = Builder()
    mine, foreign = (fetch_engine(MODEL, key(device), build) for device in (DEVICE, FOREIGN))
    assert build.builds == 2
    assert mine.root != foreign.root


@pytest.mark.parametrize("damage", [b"engin", b"Engine", None])
def test_a_damaged_engine_is_built_again(damage: bytes | None) -> None:
    build = Builder()
    engine = fetch_engine(MODEL, key(), build).root / ENGINE_NAME
    if damage is None:
        engine.unlink()
    else:
        engine.write_bytes(damage)
    assert not fetch_engine(MODEL, key(), build).reused
    assert build.builds == 2
    assert engine.read_bytes() == b"engine"


@pytest.mark.parametrize(
    ("cause", "code", "hint"),
    [
        (Cause.REFUSED, ErrorCode.UNSUPPORTED_MODEL, "another recipe"),
        (Cause.UNAVAILABLE, ErrorCode.PROVIDER_UNAVAILABLE, "provider cuda"),
        (Cause.CRASHED, ErrorCode.PROVIDER_UNAVAILABLE, "provider cuda"),
        (Cause.TIMED_OUT, ErrorCode.PROVIDER_UNAVAILABLE, "MLCTL_TRT_BUILD_TIMEOUT_S"),
    ],
)
def test_a_failed_build_leaves_nothing_and_says_what_to_do(
    cause: Cause, code: ErrorCode, hint: str
) -> None:
    def fail(directory: Path) -> None:
        (directory / ENGINE_NAME).write_bytes(b"half")
        raise WorkerError(cause, "its own sentence")

    with pytest.raises(MlctlError, match="its own sentence") as caught:
        fetch_engine(MODEL, key(), fail)
    assert caught.value.code is code
    assert hint in caught.value.hint
    assert not fetch_engine(MODEL, key(), Builder()).reused


def test_timings_outlive_the_engines() -> None:
    directory = timing_directory(DEVICE)
    (directory / "timing.cache").write_bytes(b"timings")
    assert timing_directory(DEVICE) == directory
    assert timing_directory(FOREIGN) != directory
